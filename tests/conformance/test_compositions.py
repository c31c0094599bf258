"""Checks for every normalizer with every map: `qmaps.testing.normalizers`.

Every check meets every normalizer and every map; ``make fuzz`` runs all their products.
"""

from __future__ import annotations

import dataclasses
import os

import pytest
import torch

from qmaps.algebra.rounding import Rounding
from qmaps.normalize import BlockWise
from qmaps.normalize.base import Normalizer, Scales, Shape
from qmaps.testing import check_normalizer
from qmaps.testing.normalizers import CHECKS, Check, run
from tests.helpers import about, compositions, normalizers, representatives, sample

NORMALIZERS = list(normalizers())


@pytest.mark.fuzz
@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=str)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_compositions(check: Check, normalizer: Normalizer, device: torch.device) -> None:
    maps = [map_ for map_ in representatives(4) if map_.log_domain == normalizer.log_domain]
    if "QMAPS_FUZZ" not in os.environ:
        alike = [n for n in NORMALIZERS if n.log_domain == normalizer.log_domain]
        first = CHECKS.index(check) + alike.index(normalizer)
        maps = [
            of_sign[number % len(of_sign)]
            for signed in (True, False)
            if (of_sign := [map_ for map_ in maps if map_.signed == signed])
            for number in range(first, first + len(of_sign), len(alike))
        ]
    run(check, normalizer, maps, device)


def test_a_wrong_normalizer_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(self: BlockWise, scales: Scales, shape: Shape) -> torch.Tensor:
        return 2 * expand(self, scales, shape)

    expand = BlockWise.expand
    monkeypatch.setattr(BlockWise, "expand", doubled)
    with pytest.raises(AssertionError) as caught:
        check_normalizer(BlockWise(64))
    assert caught.value.__notes__[-1].endswith("of B64")
    with pytest.raises(TypeError, match="normalizer must be a Normalizer"):
        check_normalizer(BlockWise)


@pytest.mark.gpu
def test_cuda_gives_the_bits_of_the_cpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    for bits in (4, 8):
        for q in compositions(bits):
            x = sample((40, 64), q.map.signed)
            frozen = q.fit(x)
            for quantizer in (frozen, dataclasses.replace(frozen, rounding=Rounding.STOCHASTIC)):
                with about(quantizer):
                    on_cpu, on_gpu = quantizer.quantize(x), quantizer.quantize(x.cuda())
                    assert torch.equal(on_cpu.packed, on_gpu.packed.cpu())
                    for ours, theirs in zip(on_cpu.scales, on_gpu.scales, strict=True):
                        assert torch.equal(ours, theirs.cpu())
                    assert torch.equal(on_cpu.dequantize(), on_gpu.dequantize().cpu())
