"""A new map is usable everywhere by declaring it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import qmaps
from qmaps.maps.base import REGISTRY, Map
from tests.helpers import formula_maps


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
        assert any(isinstance(m, Halving) for m in formula_maps())
    finally:
        del REGISTRY["halving"]
