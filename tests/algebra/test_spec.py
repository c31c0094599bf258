from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qmaps
from qmaps import maps, normalize
from qmaps.algebra.pair import Pair
from qmaps.errors import one_line
from qmaps.maps import DynamicExponent, Linear, Transformed
from qmaps.normalize import BlockWise, EightBit, Rank1
from qmaps.normalize.scale_format import SUFFIXES


def test_division_and_spec_make_the_same_quantizer() -> None:
    assert BlockWise(128) / DynamicExponent(bits=4, signed=True) == qmaps.quantizer("B128/DE@4s")
    product = (BlockWise(128) & Rank1()) / Linear(bits=4, signed=False)
    assert str(product) == "B128&rank1/linear@4u"
    assert qmaps.quantizer(" b128 & RANK-1 / Linear@4U ") == product
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
    'does not have the form NORM[SUFFIX]["&"NORM[SUFFIX]]/[TRANSFORM:]MAP@BITS["s"|"u"]'
    '["+sr"|"+qsr"], such as B128/DE@4s'
)
OURS = (
    "DE, DE-0, DE-sym, DE-table, e4m3, e5m2, inverse, linear, linear0, lloyd, log2, mantissa, nf4, "
    "power2, power3, quantile, quantile-normal, static-tree, tree"
)


def with_further(ours: str, registered: list[str]) -> str:
    """These names and those added since, as a message lists them."""
    return ", ".join(sorted({*ours.split(", "), *registered}, key=str.lower))


MAPS = with_further(OURS, maps.names())
NORMS = (
    with_further("B<n>, col, logB<n>, rank1, row, tensor", normalize.names())
    + ", each with or without one of x8, xbf16, xe4m3, xe8m0, xf16, xf16sq"
)


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
        ("B0/DE@4s", "spec='B0/DE@4s': block_size=0 must be at least 1"),
        ("B0x8/DE@4s", "spec='B0x8/DE@4s': block_size=0 must be at least 1"),
        ("logB0/log2@4u", "spec='logB0/log2@4u': block_size=0 must be at least 1"),
        ("B-1/DE@4s",
         f"spec='B-1/DE@4s': unknown normalizer 'B-1'; allowed are {NORMS}; nearest match: B1"),
        ("B128&/DE@4s", f"spec='B128&/DE@4s': unknown normalizer ''; allowed are {NORMS}"),
        ("logB8x8/log2@4u",
         "spec='logB8x8/log2@4u': logB8 cannot be combined with 'x8'; it works alone, with "
         "the maps log2 and log2-0"),
        ("logB8&B8/log2@4u",
         "spec='logB8&B8/log2@4u': logB8 cannot be combined with '&'; it works alone, with "
         "the maps log2 and log2-0"),
        ("B8/log2@4u", (
            "B8/log2@4u: the normalizer logB<n> and the maps log2 and log2-0 only work with each "
            "other"
        )),
        ("logB8/DE@4u", (
            "logB8/DE@4u: the normalizer logB<n> and the maps log2 and log2-0 only work with each "
            "other"
        )),
        ("tensor/static-tree(tree_bits=4,tree=2)@8s",
         "spec='tensor/static-tree(tree_bits=4,tree=2)@8s': unknown field 'tree' of static-tree; "
         "allowed are tree_bits, offset"),
        ("B128/DE@1s", (
            "spec='B128/DE@1s': bits=1 is not allowed for signed DE; its widths are 2 to 8 bits"
        )),
        ("B8x8x8/DE@4s",
         "spec='B8x8x8/DE@4s': B8x8 cannot be followed by 'x8'; 'x8' follows the name of "
         "one normalizer"),
        ("tensor/linear0(a=1)@4s",
         "spec='tensor/linear0(a=1)@4s': unknown field 'a' of linear0; allowed are full"),
        ("tensor/quantile(midpoints=2)@4s",
         "spec='tensor/quantile(midpoints=2)@4s': midpoints='2' must be true or false"),
        ("tensor/static-tree(tree_bits=4,TREE_BITS=5)@8s",
         "spec='tensor/static-tree(tree_bits=4,TREE_BITS=5)@8s': field 'TREE_BITS' of static-tree "
         "is given more than once"),
        ("tensor/static-tree(tree_bits=0_4)@8s",
         "spec='tensor/static-tree(tree_bits=0_4)@8s': tree_bits='0_4' must be of type int"),
        ("B\u0661/DE@4s", f"spec='B\u0661/DE@4s': unknown normalizer 'B\u0661'; "
         f"allowed are {NORMS}"),
        ("B128/DE@\u0664s", f"spec='B128/DE@\u0664s' {FORM}"),
    ],
)  # fmt: skip
def test_bad_specs(spec: str, message: str) -> None:
    with pytest.raises(qmaps.errors.SpecError) as caught:
        qmaps.quantizer(spec)
    assert str(caught.value) == message


FACTORS = ("4", "0.5", "2.25", "1e-05", "1e+16")


@st.composite
def specs(draw: st.DrawFn) -> tuple[str, str]:
    """A canonical spec from the registries, and the same with other case and spaces."""
    size = st.integers(1, 10_000)
    log = draw(st.booleans())
    names = [c.spec_name for c in maps.REGISTRY.values() if c.log_domain == log]
    cls = maps.REGISTRY[draw(st.sampled_from(names))]
    signed = draw(st.sampled_from(cls.signs))
    fields = {}
    for field in dataclasses.fields(cls):
        if field.name not in ("bits", "signed") and draw(st.booleans()):
            kind = st.booleans() if isinstance(field.default, bool) else st.integers(1, 3)
            fields[field.name] = draw(kind)
    probe = object.__new__(cls)
    for field in dataclasses.fields(cls):
        object.__setattr__(probe, field.name, fields.get(field.name, field.default))
    width = draw(st.sampled_from(probe.widths(signed)))
    parts = []
    alone = log or draw(st.integers(0, 9)) == 0
    kinds = [c for c in normalize.REGISTRY if c.log_domain == log and c.spec_name != "unscaled"]
    kinds = [c for c in kinds if c.linear != alone]
    for _ in range(1 if alone else draw(st.integers(1, 3))):
        part = draw(st.sampled_from(kinds)).spec_name
        part = part.replace("<n>", str(draw(size))).replace("<k>", draw(st.sampled_from(FACTORS)))
        if log:
            part += draw(st.sampled_from(["", "q0.25", "q1", "q1e-07"]))
        parts.append(part + draw(st.sampled_from([""] if alone else ["", *SUFFIXES])))
    if not alone and draw(st.integers(0, 9)) == 0:
        parts = ["unscaled"]
    if all(part.endswith("xe8m0") for part in parts) or parts == ["unscaled"]:
        fields = {key: value for key, value in fields.items() if key not in ("mx", "raw")}
    if fields.get("mx"):
        fields.pop("raw", None)
    map_: maps.Map = cls(bits=width, signed=signed, **fields)
    if draw(st.booleans()) and cls.spec_name in ("DE", "linear", "nf4", "power2"):
        transform = draw(st.sampled_from(["sqrt", "softsign", "mu-law15", "pow0.25", "log20"]))
        map_ = Transformed(transform, map_, nearest=draw(st.booleans()))
    spec = f"{'&'.join(parts)}/{map_.spec}{draw(st.sampled_from(['', '+sr']))}"
    odd = draw(st.sampled_from([str.upper, str.lower, str.title]))(spec)
    gaps = draw(st.sampled_from(["", " "]))
    return spec, gaps + odd.replace("&", f"{gaps}&{gaps}").replace("/", f"{gaps}/{gaps}") + gaps


@settings(max_examples=400, deadline=None)
@given(specs())
def test_any_spec_round_trips_in_any_case(pair: tuple[str, str]) -> None:
    canonical, odd = pair
    q = qmaps.quantizer(canonical)
    assert str(q) == canonical
    assert qmaps.quantizer(odd) == q
    assert hash(qmaps.quantizer(odd)) == hash(q)
    assert qmaps.quantizer(q) is q


@settings(max_examples=300, deadline=None)
@given(st.text("B128x&/DE@4su+(r)= ,linea", max_size=14) | st.text(max_size=10))
def test_any_other_text_is_a_spec_error_on_one_line(text: str) -> None:
    try:
        q = qmaps.quantizer(text)
    except qmaps.errors.SpecError as error:
        message = str(error)
    else:
        assert qmaps.quantizer(str(q)) == q
        return
    assert message.startswith(f"spec={text!r}")
    assert "\n" not in message


def test_codebooks_are_found_by_their_label() -> None:
    labelled = qmaps.Codebook([0.0, 0.5, 1.0], label="Mine.v-2_x")
    unused = qmaps.Codebook([-1.0, 1.0], label="other")
    q = qmaps.quantizer("B64/mine.V-2_X@2+sr", codebooks=iter([unused, labelled]))
    assert str(q) == "B64/Mine.v-2_x@2u+sr"
    assert q.map == labelled
    for spec, message in {
        "B64/Mine.v-2_x@3u": "the codebook given is Mine.v-2_x@2u, which has another width or sign",
        "B64/Mine.v-2_x@2s": "the codebook given is Mine.v-2_x@2u, which has another width or sign",
        "B64/othr@1s": f"unknown map 'othr'; allowed are {MAPS}, Mine.v-2_x, other; "
                       "nearest match: other",
    }.items():  # fmt: skip
        with pytest.raises(qmaps.errors.SpecError) as caught:
            qmaps.quantizer(spec, codebooks=[labelled, unused])
        assert str(caught.value) == one_line(f"spec={spec!r}: {message}")


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
        "pair='B128/DE@4s' has 1 parts; expected 'FIRST + SECOND' with spaces around '+' "
        "and 32-bit for a moment that is not quantized"
    )
