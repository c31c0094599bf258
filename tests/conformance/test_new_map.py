"""A new map or normalizer is usable everywhere by declaring it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import qmaps
from qmaps import maps, normalize
from qmaps.maps.base import Map
from qmaps.normalize.base import Layout, Normalizer, Scales, Shape
from tests.helpers import formula_maps, normalizers


def test_a_declared_map_has_a_spec_and_joins_the_suite() -> None:
    @dataclass(frozen=True)
    class Halving(Map, name="halving"):
        """Powers of one half."""

        base: int = 2

        def values(self) -> torch.Tensor:
            i = torch.arange(2**self.bits - 1, -1, -1, dtype=torch.float64)
            return float(self.base) ** -i

    try:
        q = qmaps.quantizer("B64/halving@3u")
        assert q.map == Halving(3, False)
        assert q.map.codebook().tolist() == [2.0**-i for i in range(7, -1, -1)]
        assert str(qmaps.quantizer("b64/HALVING(base=3)@2U")) == "B64/halving(base=3)@2u"
        assert q.quantize(torch.tensor([4.0, 1.0])).dequantize().tolist() == [4.0, 1.0]
        assert any(isinstance(m, Halving) for m in formula_maps())
        with pytest.raises(qmaps.QmapsError, match="nearest match: halving"):
            qmaps.quantizer("B64/halvin@3u")
    finally:
        del maps.REGISTRY["halving"]


def test_a_declared_normalizer_has_a_spec_and_joins_the_suite() -> None:
    @dataclass(frozen=True)
    class Doubled(Normalizer, name="doubled"):
        """Twice the largest magnitude."""

        @property
        def spec(self) -> str:
            return "doubled"

        def layout(self, shape: Shape) -> Layout:
            return ((torch.float32, ()),)

        def scales(self, x: torch.Tensor) -> Scales:
            return (2 * normalize.base.largest(x),)

        def expand(self, scales: Scales, shape: Shape) -> torch.Tensor:
            return scales[0]

    try:
        q = qmaps.quantizer("DOUBLEDx8&B64/linear0@8s")
        assert str(q) == "doubledx8&B64/linear0@8s"
        x = torch.tensor([1.0, -0.5])
        found = qmaps.quantizer("doubled/linear@2u").quantize(x.abs())
        assert found.scales[0] == 2.0
        assert found.dequantize().tolist() == [1.0, 0.5]
        assert {"doubled", "doubledx8"} <= {str(n) for n in normalizers()}
    finally:
        normalize.REGISTRY.remove(Doubled)
