"""The engine beside the reference over tensors, views, quantizers and changes drawn at random.

``make fuzz`` draws many more.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qmaps import Quantizer
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.algebra.rounding import Rounding
from qmaps.engines.addresses import missing_bytes
from qmaps.errors import QmapsError
from qmaps.ops.backends import use_backend
from qmaps.optim.base import QuantizedOptimizer
from tests.helpers import compositions, examples
from tests.optim import changes
from tests.optim.families import FUSED, same_bits

LARGEST = 1500
"""Elements of a tensor."""

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]

shapes = st.one_of(
    st.integers(0, LARGEST).map(lambda n: (n,)),
    st.lists(st.integers(0, 12), max_size=3).map(tuple),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
)
quantizers = st.integers(2, 8).flatmap(lambda bits: st.sampled_from(_compositions(bits)))


@functools.cache
def _compositions(bits: int) -> list[Quantizer]:
    """Every composition, with block sizes with and without a remainder, and each rounding."""
    roundings = (Rounding.NEAREST, Rounding.STOCHASTIC)
    return [replace(q, rounding=rounding) for q in compositions(bits) for rounding in roundings]


def normal(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


VALUES = {
    "normal": normal,
    "heavy tails": lambda shape, seed: normal(shape, seed) * 10 ** (4 * normal(shape, seed + 1)),
    "few": lambda shape, seed: normal(shape, seed).round(),
    "one": lambda shape, seed: torch.full(shape, float(seed - 2)),
    "zeros": lambda shape, seed: torch.zeros(shape) * (-1) ** seed,
    "subnormal": lambda shape, seed: normal(shape, seed) * 1e-41,
    "not negative": lambda shape, seed: normal(shape, seed).square(),
    "not finite": lambda shape, seed: normal(shape, seed).log(),
}
VIEWS = {
    "plain": lambda x: x,
    "strided": changes.strided,
    "transposed": lambda x: x.t().contiguous().t() if x.dim() == 2 else x,
    "expanded": lambda x: x.flatten()[0].expand(x.shape) if x.numel() else x,
    "offset": lambda x: torch.cat([x.reshape(-1)] * 2)[x.numel() :].view_as(x),
    "negative": lambda x: changes.negative(x.float()),
    "zero": lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype),
}


@st.composite
def tensors(draw: Any) -> Tensor:
    shape, seed = draw(shapes), draw(st.integers(0, 5))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    x = VALUES[draw(st.sampled_from(sorted(VALUES)))](shape, seed)
    return VIEWS[draw(st.sampled_from(sorted(VIEWS)))](x.to(dtype))


def quantized(q: Quantizer, x: Tensor) -> tuple[str, list[Tensor]]:
    """The error, or codes, scales and decoded values, in plain and in strided memory."""
    try:
        t = q.quantize(x)
    except QmapsError as error:
        return str(error), []
    out = changes.strided(torch.zeros(x.shape))
    t.dequantize(out=out)
    again = t.clone()
    q.quantize(x, out=again)
    return "", [*parts(t), t.dequantize(), t.dequantize(dtype=torch.bfloat16), out, *parts(again)]


def parts(t: QuantizedTensor) -> list[Tensor]:
    return [t.packed, *t.scales]


@settings(max_examples=examples(150), deadline=None)
@given(quantizers, tensors())
def test_quantizing(q: Quantizer, x: Tensor) -> None:
    with use_backend("native"):
        ours = quantized(q, x)
    with use_backend("reference"):
        theirs = quantized(q, x)
    assert ours[0] == theirs[0]
    for a, b in zip(ours[1], theirs[1], strict=True):
        assert same_bits(a, b) if a.is_floating_point() else torch.equal(a, b)


KINDS: dict[str, dict[str, changes.Change]] = {
    "parameter": changes.OF_PARAMETERS,
    "state": changes.OF_STATES,
    "gradient": changes.OF_GRADIENTS,
}


@st.composite
def plans(draw: Any) -> list[tuple[str, int, str]]:
    """Changes before each of a few steps: the kind, the parameter's number, the name."""
    plan = []
    for _ in range(draw(st.integers(2, 5))):
        kind = draw(st.sampled_from(["", *KINDS]))
        name = draw(st.sampled_from(sorted(KINDS[kind]))) if kind else ""
        plan.append((kind, draw(st.integers(0, 30)), name))
    return plan


def apply(kind: str, which: int, name: str, optimizer: QuantizedOptimizer, p: Tensor) -> None:
    actual = {
        "parameter": [p],
        "state": [x for key, x in changes.tensors_of(optimizer, p) if key != "step[0]"],
        "gradient": [p.grad],
    }[kind]
    if actual and not missing_bytes(x := actual[which % len(actual)]):  # or torch would crash
        with torch.no_grad():
            KINDS[kind][name](x)


def trained(case: Any, specs: Any, dtype: torch.dtype, plan: list[Any]) -> tuple[Any, Any]:
    family, options = case
    shapes_ = ((24, 20), (300,), (1,))
    params = [normal(shape, 1).to(dtype).requires_grad_() for shape in shapes_]
    optimizer = family.full(params, state_quantizers=specs, min_quantized_size=9, **options)
    errors = []
    for number, (kind, which, name) in enumerate(plan):
        p = params[which % len(params)]
        if kind in ("parameter", "state"):
            apply(kind, which, name, optimizer, p)
        for param in params:
            param.grad = normal(tuple(param.shape), number).to(param.dtype)
        if kind == "gradient":
            apply(kind, which, name, optimizer, p)
        errors.append(changes.outcome(optimizer.step))
    return errors, changes.snapshot(optimizer, params)


@st.composite
def choices(draw: Any) -> tuple[Any, Any]:
    """An optimizer with its options, and a quantizer or none for each of its states."""
    family, options = draw(st.sampled_from(FUSED))
    signed = family.full.signed_states
    specs = {}
    for name in family.full.state_names:
        q = draw(quantizers)
        # Of states that are never negative, no code may be negative for a zero.
        fits = q.map.signed if name in signed else not q.map.signed or q.keeps_zero
        specs[name] = q if fits and draw(st.booleans()) else None
    return (family, options), specs


@settings(max_examples=examples(60), deadline=None)
@given(choices(), st.sampled_from([torch.float32, torch.bfloat16]), plans())
def test_steps_with_changes_between_them(
    choice: tuple[Any, Any], dtype: torch.dtype, plan: list[Any]
) -> None:
    with use_backend("native"):
        ours = trained(*choice, dtype, plan)
    with use_backend("reference"):
        theirs = trained(*choice, dtype, plan)
    assert ours[0] == theirs[0]
    for a, b in zip(ours[1], theirs[1], strict=True):
        assert a.dtype == b.dtype
        assert same_bits(a, b) if a.is_floating_point() else torch.equal(a, b)
