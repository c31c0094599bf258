"""Any object as a spec, a tensor or a number is accepted or raises an error of qmaps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import qmaps
from qmaps import errors, maps, normalize, quantiles
from qmaps.algebra import saved as store
from qmaps.errors import BadTypeError, BadValueError, SpecError, one_line, shown
from qmaps.ops.backends import backends, use_backend
from tests.helpers import examples
from tests.odd import CONTAINERS, NUMBERS, TEXTS, objects, refused, tensors

X = torch.rand(4, 6) + 0.5
Q = qmaps.quantizer("B8/DE@4s")
AVAILABLE = {backend.name for backend in backends() if backend.available}
EVERYTHING = [*NUMBERS, *TEXTS, *CONTAINERS, *tensors()]


def test_messages_are_short_and_on_one_line() -> None:
    assert str(errors.QmapsError("a" * 600)) == f"{'a' * 355} ... {'a' * 239}"
    assert str(errors.QmapsError("a" * 299)) == "a" * 299
    assert str(errors.BadTypeError("a\n  b")) == "a b"
    assert one_line("a\rb") == "a b"
    assert shown(10**5000) == "<int of 16610 bits>"
    assert shown(list(range(10))) == "[0, 1, 2, 3, 4, 5, ...]"
    assert shown("a" * 200) == f"'{'a' * 57}...{'a' * 58}'"
    assert shown(torch.ones(2, 3)) == "<float32 tensor of shape (2, 3)>"
    assert shown(torch.nn.Parameter(torch.ones(1))) == (
        "Parameter containing: tensor([1.], requires_grad=True)"
    )
    for value in EVERYTHING:
        assert len(shown(value)) <= 120


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (f"B{'9' * 4301}/DE@4s", " has 4308 characters; at most 500 are allowed"),
        (f"B8/DE@{'9' * 400}",
         ": bits=<int of 1329 bits> is not allowed for signed DE; its widths are 2 to 8 bits"),
        (f"B8{'x8' * 3000}/DE@4s", " has 6008 characters; at most 500 are allowed"),
        (f"B8{'x8' * 200}/DE@4s", (
            ": B8x8 cannot be followed by 'x8'; 'x8' follows the name of one normalizer"
        )),
        ("&".join(["B8"] * 2000) + "/DE@4s", " has 6005 characters; at most 500 are allowed"),
        ("B99999999999999999999/DE@4s",
         ": block_size=99999999999999999999 must be at most 2**53"),
        ("logB9007199254740993/log2@4u", ": block_size=9007199254740993 must be at most 2**53"),
    ],
    ids=range(7),
)  # fmt: skip
def test_specs_that_are_too_long(spec: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        qmaps.quantizer(spec)
    assert str(caught.value) == f"spec={shown(spec)}{message}"


def test_many_parts_and_huge_blocks_quantize() -> None:
    for spec in ("&".join(["B8"] * 150) + "/DE@4s", f"B{2**53}x8/DE@4s", f"logB{2**53}/log2@4u"):
        q = qmaps.quantizer(spec)
        assert q.quantize(X).dequantize().shape == X.shape
        assert qmaps.quantizer(str(q)) == q


def test_depth_of_the_stack_does_not_matter() -> None:
    def deep(depth: int) -> str:
        if depth:
            return deep(depth - 1)
        with pytest.raises(SpecError) as caught:
            qmaps.quantizer(f"B8{'x8' * 240}/DE@4s")
        return str(caught.value)

    room = sys.getrecursionlimit() - 200
    assert deep(room - len(_frames())).endswith("'x8' follows the name of one normalizer")


def _frames() -> list[Any]:
    actual, frame = [], sys._getframe()
    while frame is not None:
        actual.append(frame)
        frame = frame.f_back  # type: ignore[assignment]
    return actual


CALLS: dict[str, Callable[[Any], Any]] = {
    "spec": qmaps.quantizer,
    "map": lambda v: qmaps.quantizer(f"B8/{v}@4s") if isinstance(v, str) else None,
    "quantize": lambda v: Q.quantize(v),
    "fit": lambda v: qmaps.quantizer("tensor/lloyd@2s").fit(v),
    "error": lambda v: Q.error(v),
    "out": lambda v: Q.quantize(X, out=v),
    "key": lambda v: Q.quantize(X, key=v),
    "t": lambda v: Q.dequantize(v),
    "dequantize out": lambda v: Q.quantize(X).dequantize(out=v),
    "dtype": lambda v: Q.quantize(X).dequantize(dtype=v),
    "exact": quantiles.exact,
    "sram": quantiles.sram,
    "num": lambda v: quantiles.exact(X, num=v),
    "offset": lambda v: quantiles.exact(X, offset=v),
    "chunk": lambda v: quantiles.sram(X, chunk=v),
    "seed": lambda v: qmaps.RoundingKey(seed=v),
    "block": normalize.BlockWise,
    "bits": maps.DynamicExponent,
    "signed": lambda v: maps.DynamicExponent(4, signed=v),
    "offset of a map": lambda v: maps.Mantissa(8, offset=v),
    "tree_bits": lambda v: maps.StaticTree(8, tree_bits=v),
    "midpoints": lambda v: maps.Quantile(4, midpoints=v),
    "values": maps.Codebook,
    "label": lambda v: maps.Codebook([0, 1], label=v),
    "width": lambda v: maps.Codebook([0, 1], bits=v),
    "sign": lambda v: maps.Codebook([0, 1], signed=v),
    "from_plain": store.from_plain,
}


@pytest.mark.parametrize("name", CALLS)
def test_every_odd_object_is_taken_or_refused(name: str) -> None:
    for backend in AVAILABLE:
        with use_backend(backend):
            for value in EVERYTHING:
                refused(CALLS[name], value)


@pytest.mark.fuzz
@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(sorted(CALLS)), objects())
def test_any_object_is_taken_or_refused(name: str, value: Any) -> None:
    refused(CALLS[name], value)


DENSE = "expected a dense tensor with values"
KINDS = [
    (lambda: X.to_sparse(), f"has the layout torch.sparse_coo; {DENSE}"),
    (lambda: X.to_sparse_csr(), f"has the layout torch.sparse_csr; {DENSE}"),
    (lambda: X.to_mkldnn(), f"has the layout torch._mkldnn; {DENSE}"),
    (lambda: X.to("meta"), f"is on the device 'meta', without values; {DENSE}"),
    (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
     f"is a nested tensor; {DENSE}"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "why"), KINDS)
def test_tensors_without_dense_elements(make: Callable[[], torch.Tensor], why: str) -> None:
    for name in ("quantize", "fit", "error", "exact", "sram"):
        with pytest.raises(BadTypeError) as caught:
            CALLS[name](make())
        assert str(caught.value) == f"x {why}"
    with pytest.raises(BadTypeError) as caught:
        Q.quantize(X).dequantize(out=make())
    assert str(caught.value) == f"out {why}"


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_transforms_of_torch_func_are_named(backend: str) -> None:
    def through(x: torch.Tensor) -> torch.Tensor:
        return Q.quantize(x).dequantize().sum()

    if backend not in AVAILABLE:
        pytest.skip(f"{backend} is not there")
    with use_backend(backend):
        for call in (
            lambda: torch.func.grad(through)(X),
            lambda: torch.func.vmap(through)(X),
            lambda: torch.func.jvp(through, (X,), (X,)),
        ):
            with pytest.raises(BadTypeError) as caught:
                call()
            assert str(caught.value) == (
                f"x is inside a transform of torch.func, such as grad, jvp or vmap; {DENSE}"
            )


PLAIN = [
    ({"shape": ["a"]}, "shape=['a'] of a saved quantized tensor must consist of ints"),
    ({"shape": [float("nan")]}, "shape=[nan] of a saved quantized tensor must consist of ints"),
    ({"shape": [4.0, 6.0]}, "shape=[4.0, 6.0] of a saved quantized tensor must consist of ints"),
    ({"scales": [-torch.ones(3)]}, "scales of B8/DE@4s must not be negative; at least one is"),
    ({"packed": torch.zeros(12, dtype=torch.uint8, device="meta")},
     "packed and scales of a quantized tensor must be dense tensors"),
    ({"scales": [torch.ones(3, device="meta")]},
     "packed and scales of a quantized tensor must be dense tensors"),
    ({"shape": [10**5000]}, None),
    ({"spec": "x" * 5000}, None),
    ({"codebook": torch.ones(2, device="meta"), "map": {}}, None),
    ({"codebook": ["a"], "map": {"normalizer": "B8", "stochastic": 0, "label": 7}}, None),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), PLAIN, ids=range(len(PLAIN)))
def test_damaged_parts_of_a_quantized_tensor(change: dict[str, Any], message: str | None) -> None:
    plain = {**store.to_plain(Q.quantize(X)), **change}
    with pytest.raises(BadValueError) as caught:
        store.from_plain(plain)
    assert message is None or str(caught.value) == message
    assert len(str(caught.value)) < 300


def test_unwritable_outputs_are_refused() -> None:
    several = "several elements of out share one memory location; each element needs its own"
    for out, message in (
        (torch.zeros(1, 6).expand(4, 6), several),
        (torch._efficientzerotensor((4, 6)), several),
        (X.clone().requires_grad_(), "out requires gradients; write into it under torch.no_grad()"),
        (X.int(), "out must be a floating-point tensor, got torch.int32"),
        (X + 0j, "out must be a floating-point tensor, got torch.complex64"),
    ):
        with pytest.raises((BadTypeError, BadValueError)) as caught:
            Q.quantize(X).dequantize(out=out)
        assert str(caught.value) == message
    parameter = torch.nn.Parameter(X.clone())
    with torch.no_grad():
        Q.quantize(X).dequantize(out=parameter)
    assert torch.equal(parameter, Q.quantize(X).dequantize())


def test_scales_that_have_become_nan_can_be_read() -> None:
    t = Q.quantize_unchecked(X * torch.nan)
    assert store.from_plain(store.to_plain(t)).dequantize().isnan().any()
