"""A new map or normalizer is usable everywhere by declaring it."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch

import qmaps
from qmaps import maps, normalize
from qmaps.cli import main
from qmaps.lab.frames import _map_curves
from qmaps.maps.base import Map
from qmaps.normalize.base import Layout, Normalizer, Scales, Shape
from tests.helpers import formula_maps, normalizers


def test_a_map_without_an_8_bit_form_is_known_everywhere(capsys) -> None:
    @dataclass(frozen=True)
    class Narrow(Map, name="narrow"):
        """Three to five bits, signed only."""

        signs = (True,)

        def widths(self, signed: bool) -> range:
            return range(3, 6)

        def values(self) -> torch.Tensor:
            return torch.linspace(-1, 1, 2**self.bits, dtype=torch.float64)

    try:
        assert Narrow.widths_of(True) == range(3, 6)
        assert not Narrow.widths_of(False)
        assert (Narrow.near(8), Narrow.near(2)) == (Narrow(5), Narrow(3))
        with pytest.raises(ValueError, match="narrow must be signed"):
            Narrow.near(4, signed=False)
        assert "narrow@5s" in set(_map_curves()["map"])
        with pytest.raises(SystemExit) as caught:
            main(["maps", "--json"])
        assert caught.value.code == 0
        rows = {row["map"]: row for row in json.loads(capsys.readouterr().out)["maps"]}
        assert rows["narrow"]["widths"] == {"s": "3-5"}
        with pytest.raises(SystemExit):
            main(["maps", "narrow@3s", "--json"])
        assert len(json.loads(capsys.readouterr().out)["values"]) == 8
    finally:
        del maps.REGISTRY["narrow"]


def test_a_log_map_of_another_name_is_shown(capsys) -> None:
    @dataclass(frozen=True)
    class Finer(maps.Log2, name="finer"):
        """log2 by another name."""

    try:
        with pytest.raises(SystemExit) as caught:
            main(["maps", "finer@3u", "--json"])
        assert caught.value.code == 0
        assert len(json.loads(capsys.readouterr().out)["values"]) == 8
    finally:
        del maps.REGISTRY["finer"]


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
        quantized = qmaps.quantizer("doubled/linear@2u").quantize(x.abs())
        assert quantized.scales[0] == 2.0
        assert quantized.dequantize().tolist() == [1.0, 0.5]
        assert {"doubled", "doubledx8"} <= {str(n) for n in normalizers()}
    finally:
        normalize.REGISTRY.remove(Doubled)
