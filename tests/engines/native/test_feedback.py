"""Error feedback has the reference's bits in every composition: codes, residuals and parameters."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import qmaps
from qmaps.algebra.quantized import QuantizedTensor
from qmaps.algebra.rounding import Rounding
from qmaps.engines import native
from qmaps.engines.backends import use_backend
from qmaps.engines.native import tensors
from qmaps.engines.plan import memory_of
from qmaps.optim import SGD, Adafactor, AdamW
from tests.helpers import about, compositions, examples
from tests.optim.families import same_bits

SIZES = {
    "ordinary": (1.0, 1.0, 1.0),
    "small after large": (1.0, 1e-3, 1e-3),
    "zeros": (1.0, 0.0, 1.0),
    "from zeros on": (0.0, 0.0, 1e-2),
    "huge": (1e30, 1.0, 1e38),
    "subnormal": (1e-41, 1e-40, 1e-41),
    "not finite": (1.0, float("inf"), 1.0),
    "not a number": (1.0, float("nan"), 1.0),
}
FED_BACK = [
    replace(q, rounding=rounding)
    for bits in (3, 4, 8, 12)
    for q in compositions(bits)
    if not q.map.fitted
    for rounding in (Rounding.FEEDBACK_4, Rounding.FEEDBACK_8)
]
PLAIN = ("B64/DE@8", "B256/DE@4", "B7/linear@4", "rank1/linear@4", "tensor/linear0@8", "B1000/DE@8")


def states_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    found = []
    for param, state in optimizer.state.items():
        found.append(param.detach())
        for value in state.values():
            found += memory_of(value)
    return found


def assert_same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert same_bits(a, b) if a.is_floating_point() else torch.equal(a, b)


def run(specs: dict[str, object], shape: tuple[int, ...], sizes: str) -> tuple[list[Tensor], int]:
    """Parameters and states after a few steps, and how many the reference stepped."""
    generator = torch.Generator().manual_seed(0)
    param = torch.nn.Parameter(torch.randn(shape, generator=generator))
    optimizer = AdamW([param], lr=0.01, state_quantizers=specs, min_quantized_size=0)
    for size in SIZES[sizes]:
        param.grad = torch.randn(shape, generator=generator)
        param.grad.view(-1)[: param.numel() // 2] *= size if size - size == 0 else 1.0
        if param.numel() and size - size != 0:
            param.grad.view(-1)[param.numel() // 3] = size
        optimizer.step()
    return states_of(optimizer), optimizer._stepper.reference_count


@settings(max_examples=examples(120), deadline=None)
@given(
    q=st.sampled_from(FED_BACK),
    other=st.one_of(st.sampled_from(FED_BACK), st.sampled_from(PLAIN)),
    shape=st.sampled_from([(0,), (), (1,), (700,), (9, 40), (40, 33), (5, 4, 100), (3, 1024)]),
    sizes=st.sampled_from(sorted(SIZES)),
)
@pytest.mark.fuzz
def test_steps(
    q: qmaps.Quantizer, other: qmaps.Quantizer | str, shape: tuple[int, ...], sizes: str
) -> None:
    first, second = (q, other) if q.map.signed else (other, q)
    if isinstance(second, qmaps.Quantizer) and second.map.signed:
        second = PLAIN[0]
    if isinstance(first, str):
        first = qmaps.quantizer(f"{first}s")
    if isinstance(second, str):
        second = qmaps.quantizer(f"{second}u")
    specs = {"exp_avg": first if first.map.signed else None, "exp_avg_sq": second}
    with use_backend("reference"):
        theirs, _ = run(specs, shape, sizes)
    with pytest.MonkeyPatch.context() as setting, use_backend("native"):
        for isa in native.isas():
            setting.setenv("QMAPS_ISA", isa)
            with about(isa):
                assert_same(run(specs, shape, sizes)[0], theirs)


@pytest.mark.parametrize(
    ("specs", "left"),
    [
        ("B64/DE@4s+ef4 + rank1/linear@4u+ef8", 0),
        ("B100/DE@4s+ef4 + logB1000/log2@4u", 1),  # no room for whole blocks of both
        ("B100/DE@4s+ef4 + logB500/log2@4u+ef4", 1),
        ("B128/DE@4s+ef4 + logB1024/log2@4u+ef4", 0),
        ("B64/DE@4s + logB500/log2@4u", 0),
        ("B4096/DE@4s+ef4 + B384/linear@4u", 0),  # two passes
        ("rank1B16x16/linear@4s+ef4 + 32-bit", 1),
        ("lowrank2(B64/DE@8s)+B64/DE@4s+ef4 + 32-bit", 1),
    ],
)
def test_who_steps_such_states(specs: str, left: int, isa: str) -> None:
    first, second = (None if spec == "32-bit" else spec for spec in specs.rsplit(" + ", 1))
    given = {"exp_avg": first, "exp_avg_sq": second}
    ours, found = run(given, (48, 90), "ordinary")
    assert found == left
    with use_backend("reference"):
        theirs, _ = run(given, (48, 90), "ordinary")
    assert_same(ours, theirs)


def test_residuals_are_written_in_place(isa: str) -> None:
    """One plan for all steps; a residual that is changed between them counts."""

    def steps(backend: str) -> tuple[SGD, list[int]]:
        param, places = torch.nn.Parameter(torch.zeros(300)), []
        quantizers = {"momentum_buffer": "B64/linear0@4s+ef4"}
        optimizer = SGD([param], lr=1.0, momentum=0.9, min_quantized_size=0,
                        state_quantizers=quantizers)  # fmt: skip
        generator = torch.Generator().manual_seed(0)
        with use_backend(backend):
            for number in range(4):
                param.grad = torch.randn(300, generator=generator)
                optimizer.step()
                t = optimizer.state[param]["momentum_buffer"]
                places.append(t.beside[0].packed.data_ptr())
                if number == 2:
                    t.beside[0].scales[0].mul_(8)
        return optimizer, places

    (ours, places), (theirs, _) = steps("native"), steps("reference")
    assert len(set(places)) == 1
    assert_same(states_of(ours), states_of(theirs))


@pytest.mark.parametrize("change", ["moved", "freed", "resized"])
def test_a_residual_that_lies_elsewhere_is_seen(change: str, isa: str) -> None:
    def steps(backend: str) -> tuple[list[str], list[Tensor]]:
        param = torch.nn.Parameter(torch.zeros(300))
        optimizer = SGD([param], lr=1.0, momentum=0.9, min_quantized_size=0,
                        state_quantizers={"momentum_buffer": "B64/DE@4s+ef8"})  # fmt: skip
        errors = []
        with use_backend(backend):
            for number in range(4):
                param.grad = torch.linspace(-1, 1, 300)
                if number == 2:
                    packed = optimizer.state[param]["momentum_buffer"].beside[0].packed
                    if change == "moved":
                        packed.data = packed.data.clone()
                    elif change == "freed":
                        packed.untyped_storage().resize_(0)
                    else:
                        packed.resize_(packed.numel() - 1)
                try:
                    optimizer.step()
                except qmaps.QmapsError as error:
                    errors.append(str(error))
        return errors, [] if errors else states_of(optimizer)

    ours, theirs = steps("native"), steps("reference")
    assert ours[0] == theirs[0]
    assert bool(ours[0]) == (change != "moved")
    assert_same(ours[1], theirs[1])


@pytest.mark.parametrize("scale", [0.0, float("nan")])
def test_what_is_lost_under_a_scale_that_is_found_last(scale: float, isa: str) -> None:
    """Without scales codes come before it is known that all is zero or not finite."""

    def steps(backend: str) -> QuantizedTensor:
        param = torch.nn.Parameter(torch.zeros(3000))
        optimizer = SGD([param], lr=0.0, momentum=0.5, min_quantized_size=0,
                        state_quantizers={"momentum_buffer": "unscaled/linear@4s+ef4"})  # fmt: skip
        with use_backend(backend):
            param.grad = torch.full((3000,), 0.25 if scale else 0.0)
            optimizer.step()
            if scale:
                param.grad[7] = scale
            optimizer.step()
        t = optimizer.state[param]["momentum_buffer"]
        assert isinstance(t, QuantizedTensor)
        return t

    ours, theirs = steps("native"), steps("reference")
    assert torch.equal(ours.scales[0], theirs.scales[0]) == (scale == 0)
    assert_same(memory_of(ours), memory_of(theirs))
    assert bool(ours.beside[0].dequantize().isnan().all()) == (scale != 0)


def test_factored_statistics_go_to_the_reference(isa: str) -> None:
    param = torch.nn.Parameter(torch.randn(70, 300, generator=torch.Generator().manual_seed(0)))
    specs = {"row_var": "B64/linear@8u+ef4", "exp_avg": "B64/DE@4s+ef4"}
    optimizer = Adafactor([param], beta1=0.9, state_quantizers=specs, min_quantized_size=0)
    for name in ("row_var", "exp_avg"):
        optimizer.state.clear()
        optimizer.param_groups[0]["state_quantizers"] = {name: specs[name]}
        param.grad = torch.ones(70, 300)
        optimizer.step()
        assert optimizer._stepper.reference_count == (name == "row_var")


def test_the_engine_has_room_for_a_residual() -> None:
    coder = qmaps.quantizer("B128/linear0@8s")
    assert tensors.supports(coder.normalizer, coder.map, (1000,))
