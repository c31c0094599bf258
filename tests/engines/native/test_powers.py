"""Blocks with a range expanded by a power: the reference's bits, in every composition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import qmaps
from qmaps.algebra.philox import RoundingKey
from qmaps.engines import native
from qmaps.engines.plan import memory_of
from qmaps.engines.support import NATIVE
from qmaps.normalize.range_expansion import RangeExpansion
from qmaps.ops.backends import use_backend
from qmaps.optim import AdamW
from tests.helpers import about, examples, same_bits

MAPS = ("e4m3@8s", "e4m3@8u", "DE@4s", "linear@4u", "linear0@8s", "linear@3u", "power2@8u",
        "softsign@8s", "DE-0@8u")  # fmt: skip
SPREADS = {
    "normal": lambda x: x,
    "narrow": lambda x: 1 + x * 1e-4,
    "one value": lambda x: torch.full_like(x, 0.3),
    "wide": lambda x: x * 10 ** (6 * x.flip(-1) if x.dim() else x),
    "zeros": lambda x: x * (x.abs() > 1),
    "all zeros": lambda x: x * 0,
    "subnormal": lambda x: x * 1e-41,
    "huge": lambda x: x * 1e37,
    "not finite": lambda x: x.abs().log(),
    "infinite": lambda x: torch.where(x > 2, torch.inf, x),
}


def states_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    tensors = []
    for param, state in optimizer.state.items():
        tensors.append(param.detach())
        for value in state.values():
            tensors += memory_of(value)
    return tensors


def assert_same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert same_bits(a, b) if a.is_floating_point() else torch.equal(a, b)


@settings(max_examples=examples(200), deadline=None)
@given(
    size=st.sampled_from([2, 7, 16, 64, 100, 128, 1000, 1024]),
    ratio=st.sampled_from([1, 2, 16, 1000, 100352, 2**127]),
    map_=st.sampled_from(MAPS),
    rounding=st.sampled_from(["", "+sr"]),
    shape=st.sampled_from([(0,), (), (1,), (700,), (9, 40), (40, 33), (5, 4, 100), (3, 1024)]),
    spread=st.sampled_from(sorted(SPREADS)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@pytest.mark.fuzz
def test_codes_scales_and_values(
    size: int,
    ratio: int,
    map_: str,
    rounding: str,
    shape: tuple[int, ...],
    spread: str,
    dtype: torch.dtype,
) -> None:
    q = qmaps.quantizer(f"powB{size}r{ratio}/{map_}{rounding}")
    x = SPREADS[spread](torch.randn(shape, generator=torch.Generator().manual_seed(size)))
    x = (x if q.map.signed else x.abs()).to(dtype)
    key = RoundingKey(seed=3, step=5, offset=11)

    def outcome() -> list[torch.Tensor]:
        t = q.quantize_unchecked(x.float(), key=key)
        if bool(x.isfinite().all()):  # checked while it is encoded, from its own dtype
            again = q.quantize(x, key=key)
            q.quantize(x, key=key, out=again)
            assert_same([again.packed, *again.scales], [t.packed, *t.scales])
        return [t.packed, *t.scales, t.dequantize(), t.dequantize(dtype=torch.bfloat16)]

    with use_backend("reference"):
        theirs = outcome()
    with pytest.MonkeyPatch.context() as setting, use_backend("native"):
        assert NATIVE.supports(q.normalizer, q.map, shape)
        for isa in native.isas():
            setting.setenv("QMAPS_ISA", isa)
            with about(isa):
                assert_same(outcome(), theirs)


def test_golden_exponents(isa: str) -> None:
    """k = log2(256) / log2(range): 2 for a range of 16, 0.4 for 2**20."""
    q = qmaps.quantizer("powB4r256/e4m3@8s")
    x = torch.tensor([1, 2, -16, 4, 2.0**-20, 1, 0, 1, 3, 3, -3, 3, 0, 0, 0, 0])
    t = q.quantize(x)
    assert t.scales[0].tolist() == [16, 1, 3, 0]
    assert t.scales[1].tolist() == [32, 6, 255, 255]  # 16 k, rounded down
    assert t.dequantize()[2] == -16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "specs",
    [
        "powB128r100352/e4m3@8s + powB128r100352/e4m3@8u",
        "powB64r16/linear@4s+sr + rank1/linear@4u+sr",
        "B7/DE@4s + powB100r1000/DE-0@8u",
    ],
)
def test_steps(specs: str, dtype: torch.dtype, isa: str, threads: int) -> None:
    def steps(backend: str) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        shapes = ((70, 90), (9000,), (3, 40, 50), (), (0,), (5,))
        params = [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]
        optimizer = AdamW(params, lr=0.01, state_quantizers=specs, min_quantized_size=0)
        with use_backend(backend):
            for _ in range(4):
                for p in params:
                    spread = 10 ** torch.randn(p.shape, generator=generator)
                    p.grad = (torch.randn(p.shape, generator=generator) * spread).to(dtype)
                optimizer.step()
                assert optimizer.engine_counts().get("reference", 0) == (
                    len(params) if backend == "reference" else 0
                )
        return states_of(optimizer)

    assert_same(steps("native"), steps("reference"))


def test_unsupported_blocks_and_widths() -> None:
    """Blocks of one element, of more than 1024, and codes of more than 8 bits."""
    four, wide = (qmaps.quantizer(f"tensor/linear@{bits}s").map for bits in (4, 12))
    for size, map_, expected in ((1, four, False), (2, four, True), (1024, four, True),
                                 (1025, four, False), (64, wide, False)):  # fmt: skip
        assert NATIVE.supports(RangeExpansion(size, 16), map_, (5000,)) == expected
        specs = {"exp_avg": qmaps.Quantizer(RangeExpansion(size, 16), map_), "exp_avg_sq": None}
        param = torch.nn.Parameter(torch.ones(5000))
        optimizer = AdamW([param], state_quantizers=specs, min_quantized_size=0)
        param.grad = torch.ones(5000)
        optimizer.step()
        assert optimizer.engine_counts().get("reference", 0) == (not expected)
