"""Rules, presets, dtypes and sizes: steps in Triton's interpreter have the reference's bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import qmaps
from qmaps import optim
from qmaps.engines.support import TRITON
from qmaps.ops.backends import use_backend
from qmaps.ops.proof import differing, every_exponent
from tests.engines.triton.steps import FLOATS, Pair

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("interpreter")]

RULES: dict[str, dict[str, Any]] = {
    "AdamW": {"maximize": True},
    "Adam": {"weight_decay": 0.1},
    "NAdam": {"decoupled_weight_decay": True, "weight_decay": 0.1},
    "Adagrad": {"lr_decay": 0.1},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "Lion": {"weight_decay": 0.1},
    "AdEMAMix": {},
    "Adan": {"weight_decay": 0.1},
    "AdamWScheduleFree": {"weight_decay": 0.1},
}
PRESETS = ("32bit", "8bit", "4bit", "3bit", "paper-8bit", "8bit-0.3", "4bit-0.3", "3bit-0.3")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("rule", RULES)
def test_steps(rule: str, preset: str, dtype: str) -> None:
    sizes = (2048 + 7, 321) if preset == "paper-8bit" else (1029, 7)
    options = {**RULES[rule], "state_quantizers": preset, "lr": 0.01}
    pair = Pair(getattr(optim, rule), sizes, dtype, **options)
    for step in range(2):
        pair.step(step)
        pair.check()
    assert pair.ours.engine_counts() == {"triton": 2}


@pytest.mark.parametrize("preset", ["2bit", "paper-4bit"])
def test_presets_with_scales_over_several_blocks(preset: str) -> None:
    pair = Pair(optim.AdamW, ((8, 8),), "float32", state_quantizers=preset)
    pair.step(0)
    pair.check()
    (reason,) = pair.ours.engine_counts(reasons=True)
    assert reason.startswith("reference: exp_avg")


SPECS = (
    "B256/DE-sym@8s", "B256/geometric@8u+qsr", "B64xbf16/mu-law10:linear0@4s+qsr",
    "B64xbf16/geometric@2u+qsr", "B128/DE@3s+sr", "B64xf16/linear@5s+qsr", "B64xf16sq/linear@6u",
    "B24/linear@7s+sr", "B32xe8m0/e2m1@4s", "tensor/linear@4s", "row/DE@8s", "B1/linear0@8s",
    "B2/linear0@4s", "B4096/DE@8u", "B2048/DE-0@8u+sr",
)  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("spec", SPECS)
def test_quantizers(spec: str, dtype: str) -> None:
    q = qmaps.quantizer(spec)
    for shape in ((1,), (7,), (2, 520), (2, 1024)):
        x = every_exponent(shape[0] * shape[-1] if len(shape) > 1 else shape[0], 5).view(shape)
        x = (x if q.map.signed else x.abs()).clamp(-6e4, 6e4).to(FLOATS[dtype])
        assert TRITON.supports(q.normalizer, q.map, shape)
        quantized = q.quantize(x)
        decoded = q.dequantize(quantized, out=torch.empty_like(x))
        with use_backend("reference"):
            expected = q.quantize(x)
            assert differing(quantized.packed, expected.packed) == 0
            assert differing(quantized.scales[0], expected.scales[0]) == 0
            assert differing(decoded, q.dequantize(expected, out=torch.empty_like(x))) == 0


@pytest.mark.parametrize(
    ("spec", "shape", "reason"),
    [
        ("rank1/linear@4u", (8, 8), "rank1 is not one scale for each block"),
        ("B16x8/linear0@2s", (8, 8), "scales of B16x8 depend on those of other blocks"),
        ("col/linear@4u", (8, 8), "scales of col span several blocks"),
        ("tensor/linear@4u", (8192,), "blocks of tensor have more than 4096 elements"),
        ("B256/linear@10s", (512,), "linear@10s has more than 8 bits"),
        ("B256/quantile@8s", (512,), "quantile@8s is fitted"),
        ("B100/linear@4s", (512,), "blocks of B100 are not a power of two or a multiple of 8 "
                                   "elements"),
    ],
)  # fmt: skip
def test_reasons(spec: str, shape: tuple[int, ...], reason: str) -> None:
    q = qmaps.quantizer(spec)
    assert TRITON.of_tensor(q.normalizer, q.map, shape) == reason
