from __future__ import annotations

import pytest

import qmaps
from qmaps.maps import DynamicExponent, Linear
from qmaps.normalize import BlockWise, EightBit, Rank1
from qmaps.pair import Pair


def test_division_and_spec_make_the_same_quantizer() -> None:
    assert BlockWise(128) / DynamicExponent(bits=4, signed=True) == qmaps.quantizer("B128/DE@4s")
    both = (BlockWise(128) & Rank1()) / Linear(bits=4, signed=False)
    assert str(both) == "B128&rank1/linear@4u"
    assert qmaps.quantizer(" b128 & RANK-1 / Linear@4U ") == both
    assert str(EightBit(BlockWise(32)) / DynamicExponent(4)) == "B32x8/DE@4s"


def test_sign_left_out_is_the_maps_first() -> None:
    assert str(qmaps.quantizer("B128/DE@4")) == "B128/DE@4s"
    assert str(qmaps.quantizer("logB64/log2@4")) == "logB64/log2@4u"


def test_fields_of_a_map_are_shown_where_they_differ_from_the_default() -> None:
    q = qmaps.quantizer("tensor/mantissa( OFFSET = 2 , exponent_bits=3)@8s+SR")
    assert str(q) == "tensor/mantissa(offset=2)@8s+sr"
    assert qmaps.quantizer(str(q)) == q
    assert str(qmaps.quantizer("B64/quantile(midpoints=TRUE)@4s")) == (
        "B64/quantile(midpoints=true)@4s"
    )


FORM = (
    'does not have the form NORM["x8"]["&"NORM["x8"]]/MAP@BITS["s"|"u"]["+sr"], such as B128/DE@4s'
)
MAPS = (
    "DE, DE-0, e4m3, e5m2, inverse, linear, linear0, lloyd, log2, mantissa, nf4, power2, power3, "
    "quantile, quantile-normal, static-tree, tree"
)
NORMS = "B<n>, col, logB<n>, rank1, row, tensor, each with or without x8"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", f"spec='' {FORM}"),
        ("B128/DE", f"spec='B128/DE' {FORM}"),
        ("B128/DE@4x", f"spec='B128/DE@4x' {FORM}"),
        ("B128/DX@4s",
         f"spec='B128/DX@4s': unknown map 'DX'; allowed are {MAPS}; nearest match: DE"),
        ("B128/linaer@4s",
         f"spec='B128/linaer@4s': unknown map 'linaer'; allowed are {MAPS}; nearest match: linear"),
        ("B128/qqq@4s", f"spec='B128/qqq@4s': unknown map 'qqq'; allowed are {MAPS}"),
        ("C128/DE@4s",
         f"spec='C128/DE@4s': unknown normalizer 'C128'; allowed are {NORMS}; nearest match: B128"),
        ("rankone/DE@4s",
         f"spec='rankone/DE@4s': unknown normalizer 'rankone'; allowed are {NORMS}; "
         "nearest match: rank1"),
        ("B0/DE@4s", "spec='B0/DE@4s': block size=0 must be at least 1"),
        ("B0x8/DE@4s", "spec='B0x8/DE@4s': block size=0 must be at least 1"),
        ("logB0/log2@4u", "spec='logB0/log2@4u': block size=0 must be at least 1"),
        ("B128/DE@1s", "spec='B128/DE@1s': bits=1 is outside 2 to 8, the widths of signed DE"),
        ("B8x8x8/DE@4s",
         "spec='B8x8x8/DE@4s': B8x8 cannot be followed by 'x8'; put it after one name"),
        ("tensor/linear0(a=1)@4s",
         "spec='tensor/linear0(a=1)@4s': unknown field 'a' of linear0; allowed are no fields"),
        ("tensor/quantile(midpoints=2)@4s",
         "spec='tensor/quantile(midpoints=2)@4s': midpoints='2' must be true or false"),
    ],
)  # fmt: skip
def test_bad_specs(spec: str, message: str) -> None:
    with pytest.raises(qmaps.errors.SpecError) as caught:
        qmaps.quantizer(spec)
    assert str(caught.value) == message


def test_spec_must_be_text() -> None:
    with pytest.raises(
        TypeError, match="spec=4 must be a str such as 'B128/DE@4s', or a Quantizer"
    ):
        qmaps.quantizer(4)  # type: ignore[arg-type]


def test_pairs() -> None:
    pair = Pair.parse("b128/de@4s+sr  +  32-bit")
    assert str(pair) == "B128/DE@4s+sr + 32-bit"
    assert Pair.parse(("B128/DE@4s+sr", None)) == pair
    assert Pair.parse(pair) is pair
    with pytest.raises(qmaps.errors.SpecError) as caught:
        Pair.parse("B128/DE@4s")
    assert str(caught.value) == (
        "pair='B128/DE@4s' has 1 parts; 'FIRST + SECOND' is needed, with spaces around '+' and "
        "32-bit for a moment that is not quantized"
    )
