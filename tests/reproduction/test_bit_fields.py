"""Bit patterns of the data types of 2015 against their codebooks."""

from __future__ import annotations

import pytest

import qmaps
from qmaps.errors import BadValueError
from qmaps.maps.base import Map
from reproduction import analyses
from reproduction.analyses.bit_fields import fields_of, patterns

pytestmark = pytest.mark.slow

SPECS = ["tree@8s", "tree@4s", "static-tree@8s", "static-tree(tree_bits=2)@6s", "mantissa@8s",
         "mantissa(offset=2)@7s", "linear0@8s", "linear0@3s"]  # fmt: skip


def map_of(spec: str) -> Map:
    return qmaps.quantizer(f"tensor/{spec}").map


@pytest.mark.parametrize("spec", SPECS)
def test_every_pattern_is_a_code_and_every_code_has_a_pattern(spec: str) -> None:
    map_ = map_of(spec)
    magnitudes = sorted({abs(value) for value in map_.codebook().tolist()})
    assert sorted(fields_of(map_)) == magnitudes
    distinct = set()
    for fields, magnitude in patterns(map_):
        distinct.add(tuple(bit for _, bits in fields for bit in bits))
        assert min(abs(magnitude - m) for m in magnitudes) <= 1e-6 * magnitude
    assert len(distinct) == 2 ** (map_.bits - 1)
    assert {len(bits) for bits in distinct} == {map_.bits - 1}


def shown(spec: str, value: float) -> tuple[str, float]:
    """Bits with a bar between fields, and their value."""
    frame = analyses.bit_fields([map_of(spec)], [value])
    assert frame["bit"].tolist() == list(range(len(frame)))
    fields = frame.groupby("field", sort=False)["set"]
    return "|".join("".join(map(str, bits)) for _, bits in fields), frame["decoded"].iloc[0]


@pytest.mark.parametrize(
    ("spec", "value", "bits", "decoded"),
    [
        # [0.1, 0.45] is the lower half, of which 0.2345678 is in the cell 12 of 32.
        ("tree@8s", 0.2345678, "0|1|001100", 0.23671875),
        ("tree@8s", -0.2345678, "1|1|001100", -0.23671875),
        ("tree@8s", 0.0000234, "0|0000|1|00", 0.00001875),
        ("tree@8s", 1.0, "0|000000|1", 1.0),
        ("tree@8s", 0.0, "0|0000000", 0.0),
        ("static-tree@8s", 0.2345678, "0|0000|001", 0.23125),
        ("mantissa@8s", 0.2345678, "0|000|0010", 0.2),
        ("mantissa@8s", -0.0000234, "1|100|0010", -0.00002),
        ("linear0@8s", -1.0, "1|1111111", -1.0),
        ("linear0@8s", 30 / 127, "0|0011110", 30 / 127),
    ],
)
def test_bits_of_numbers(spec: str, value: float, bits: str, decoded: float) -> None:
    actual, number = shown(spec, value)
    assert actual == bits
    assert number == pytest.approx(decoded, rel=1e-6)


def test_maps_without_bit_fields_are_refused() -> None:
    allowed = "allowed are tree, static-tree, mantissa and linear0"
    for spec, message in (
        ("DE@8s", f"maps holds DE@8s; {allowed}"),
        ("tree@8u", "maps holds tree@8u, which is unsigned; every map must be signed"),
    ):
        with pytest.raises(BadValueError) as caught:
            analyses.bit_fields([map_of(spec)], [0.5])
        assert str(caught.value) == message
    with pytest.raises(BadValueError) as caught:
        analyses.bit_fields([map_of("tree@8s")], [0.5, 1.5])
    assert str(caught.value) == "values holds 1.5; every value must be between -1 and 1"
