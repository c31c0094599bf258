"""Values printed in the papers, or read from their authors' code."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch

import qmaps
from qmaps.engines import reference
from qmaps.maps.base import Map


def map_of(spec: str) -> Map:
    return qmaps.quantizer(f"{'logB64' if spec.startswith('log2') else 'tensor'}/{spec}").map


def values(spec: str) -> list[float]:
    return map_of(spec).codebook().tolist()


def close(actual: list[float], expected: list[float]) -> None:
    """Equal as float32."""
    assert torch.tensor(expected, dtype=torch.float64).float().tolist() == actual


def nearest(spec: str, x: float) -> float:
    map_ = map_of(spec)
    return float(map_.codebook()[reference.encode(torch.tensor([x]), map_)[0]])


SIZES = {
    "linear": lambda b, s: 2**b,
    "linear0": lambda b, s: 2**b - s,
    "DE": lambda b, s: 2**b,
    "DE-0": lambda b, s: 2**b - 1,
    "DE-sym": lambda b, s: 2**b - 1,
    "DE-table": lambda b, s: 249 if s else 245,
    "inverse": lambda b, s: 2**b,
    "tree": lambda b, s: 2**b - s,
    "static-tree": lambda b, s: 2**b,
    "log2": lambda b, s: 2**b,
    "log2-0": lambda b, s: 2**b,
    "e4m3": lambda b, s: 253 if s else 127,
    "e5m2": lambda b, s: 247 if s else 124,
    "e2m1": lambda b, s: 15 if s else 8,
    "e2m3": lambda b, s: 63 if s else 32,
    "e3m2": lambda b, s: 63 if s else 32,
    "hif8": lambda b, s: 253 if s else 127,
    "bf16": lambda b, s: 32259 if s else 16130,
    "fp16": lambda b, s: 63487 if s else 31744,
    "nf4": lambda b, s: 16,
    "geometric": lambda b, s: 2**b,
    "power2": lambda b, s: 2**b,
    "power3": lambda b, s: 2**b,
    "softsign": lambda b, s: 2**b - s,
    "sqrt": lambda b, s: 2**b - s,
    "mu-law": lambda b, s: 2**b - s,
    "quantile-normal": lambda b, s: 2**b,
    # 10 m 10^-(e+1) = m 10^-e: every mantissa divisible by 10 repeats one of the next decade.
    "mantissa": lambda b, s: (
        1 + (1 + s) * len({m * 10**e for m in range(1, 2 ** (b - s - 3)) for e in range(8)})
    ),
}
WIDTHS = {
    "linear": (range(2, 17), range(2, 17)),
    "linear0": (range(2, 17), range(2, 17)),
    "log2": (range(0), range(2, 9)),
    "log2-0": (range(0), range(2, 9)),
    "DE-sym": (range(2, 9), range(0)),
    "geometric": (range(0), range(2, 9)),
    "DE-table": (range(8, 9), range(8, 9)),
    "e4m3": (range(8, 9), range(8, 9)),
    "e5m2": (range(8, 9), range(8, 9)),
    "e2m1": (range(4, 5), range(4, 5)),
    "e2m3": (range(6, 7), range(6, 7)),
    "e3m2": (range(6, 7), range(6, 7)),
    "hif8": (range(8, 9), range(8, 9)),
    "bf16": (range(16, 17), range(16, 17)),
    "fp16": (range(16, 17), range(16, 17)),
    "nf4": (range(4, 5), range(0)),
    "tree": (range(3, 9), range(2, 9)),
    "static-tree": (range(5, 9), range(4, 9)),
    "mantissa": (range(5, 9), range(4, 9)),
}


def refusal(name: str, bits: int, signed: bool) -> str:
    """End of the error for an unsupported width or sign of a map."""
    widths = WIDTHS.get(name, (range(2, 9), range(2, 9)))[not signed]
    if not widths:
        allowed, refused = ("unsigned (u)", "signed (s)")[:: 1 if signed else -1]
        return f"@{bits}{'s' if signed else 'u'}': {name} must be {allowed}, got {refused}"
    span = f"{widths[0]}" if len(widths) == 1 else f"{widths[0]} to {widths[-1]}"
    sign = "signed" if signed else "unsigned"
    return f": bits={bits} is not allowed for {sign} {name}; its widths are {span} bits"


@pytest.mark.parametrize("name", qmaps.maps.names())
def test_exact_sizes_and_widths(name: str) -> None:
    signed, unsigned = WIDTHS.get(name, (range(2, 9), range(2, 9)))
    for sign, widths in ((True, signed), (False, unsigned)):
        for bits in range(1, 18):
            spec = f"{name}@{bits}{'s' if sign else 'u'}"
            if bits not in widths:
                with pytest.raises(qmaps.QmapsError) as caught:
                    map_of(spec)
                assert str(caught.value).endswith(refusal(name, bits, sign)), spec
            elif not qmaps.maps.REGISTRY[name].fitted:
                assert len(values(spec)) == SIZES[name](bits, sign), spec


def test_linear_leaves_out_zero() -> None:
    close(values("linear@4u"), [(i + 1) / 16 for i in range(16)])
    assert values("linear@4u")[0] == 0.0625
    close(values("linear@4s"), [-1 + 2 * i / 15 for i in range(16)])


def test_linear0_holds_zero() -> None:
    close(values("linear0@4u"), [i / 15 for i in range(16)])
    close(values("linear0@4s"), [k / 7 for k in range(-7, 8)])
    assert 0.0 in values("linear0@8s")
    assert len(values("linear0@12s")) == 4095
    assert values("linear0(full=true)@2s") == [-1, 0, 0.5, 1]
    close(values("linear0(full=true)@3s"), [-1, -2 / 3, -1 / 3, 0, 1 / 6, 1 / 3, 2 / 3, 1])
    assert values("linear0(full=true)@4u") == values("linear0@4u")


def test_dynamic_exponent() -> None:
    unsigned = values("DE@4u")
    close(unsigned[:4], [0, 0.00325, 0.00775, 0.02125])
    close(unsigned[-2:], [0.94375, 1])
    close(
        values("DE@4s"),
        [-0.8875, -0.6625, -0.4375, -0.2125, -0.0775, -0.0325, -0.0055, 0, 0.0055, 0.0325, 0.0775,
         0.2125, 0.4375, 0.6625, 0.8875, 1],
    )  # fmt: skip
    assert [round(v, 6) for v in values("DE@8s")[-3:]] == [0.978906, 0.992969, 1.0]
    close(values("DE@8u")[:3], [0, 3.25e-7, 7.75e-7])


def test_dynamic_exponent_without_zero() -> None:
    assert len(values("DE-0@4u")) == 15
    close(values("DE-0@4u")[:1], [0.00325])
    assert values("DE-0@8u") == values("DE@8u")[1:]
    # Of the values below, none is the nearest to a point of the table.
    unsigned, signed = values("DE-table@8u"), values("DE-table@8s")
    close(unsigned[:3], [1.5625e-5, 4.9375e-5, 7.1875e-5])
    close([v for v in signed if abs(v) < 5e-5], [-4.375e-5, -2.125e-5, 2.125e-5, 4.375e-5])
    assert unsigned[3:] == values("DE@8u")[-242:]
    assert [v for v in signed if v > 0] == values("DE@8s")[-125:]
    assert [v for v in values("DE@8s") if v] == values("DE-0@8s")


def test_symmetric_dynamic_exponent() -> None:
    close(values("DE-sym@2s"), [-1, 0, 1])
    close(values("DE-sym@3s"), [-1, -0.325, -0.055, 0, 0.055, 0.325, 1])
    positive = [0.0055, 0.0325, 0.0775, 0.2125, 0.4375, 0.6625, 1]
    close(values("DE-sym@4s"), [*(-v for v in reversed(positive)), 0, *positive])
    for bits in range(2, 9):
        codebook = values(f"DE-sym@{bits}s")
        assert codebook == [-v for v in reversed(codebook)]
        # Of `DE`, all magnitudes but the largest below 1.
        assert {abs(v) for v in codebook} == {abs(v) for v in values(f"DE@{bits}s")[1:-2]} | {1.0}


def test_dynamic_tree() -> None:
    codebook = values("tree@8s")
    positive = [v for v in codebook if 0 < v < 1]
    assert len(positive) == 126
    close([positive[0], positive[-1]], [2.75e-6, 0.99140625])
    assert {-1.0, 0.0, 1.0} <= set(codebook)
    close([nearest("tree@8s", 0.2345678)], [0.23671875])
    close([nearest("tree@8s", 0.0000234)], [0.00001875])


def test_static_tree_and_mantissa() -> None:
    close([nearest("static-tree@8s", 0.2345678)], [0.23125])
    close([nearest("mantissa@8s", 0.2345678)], [0.2])
    assert max(values("mantissa(offset=1)@8s")) == 15.0
    scaled = [10 * v for v in map_of("static-tree@8s").values().tolist()]
    assert values("static-tree(offset=1)@8s") == pytest.approx(scaled, rel=1e-6)
    # Four bits of exponent: sixteen decades of eight leaves.
    positive = [v for v in values("static-tree@8s") if v > 0]
    assert len(positive) == 128
    assert positive[-1] / positive[7] == pytest.approx(1e15, rel=1e-5)


def test_inverse_dynamic() -> None:
    magnitudes = [0.002125, 0.004375, 0.006625, 0.008875, 0.0325, 0.0775, 0.55]
    close(values("inverse@4s"), [-m for m in reversed(magnitudes)] + [0, *magnitudes, 1])


def test_float8_formats_match_torch() -> None:
    for name, dtype, top in (
        ("e4m3", torch.float8_e4m3fn, 448.0),
        ("e5m2", torch.float8_e5m2, 57344.0),
    ):
        decoded = torch.arange(256, dtype=torch.uint8).view(dtype).float()
        finite = decoded[decoded.isfinite()].double().unique() / top
        assert finite.float().tolist() == values(f"{name}@8s")
        assert finite[finite >= 0].float().tolist() == values(f"{name}@8u")


# Values of nonnegative codes of these formats, decoded by the package gfloat 0.5.2.
SMALL_FLOATS = {
    "e2m1@4": [0, 0.5, 1, 1.5, 2, 3, 4, 6],
    "e2m3@6": [
        0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1, 1.125, 1.25, 1.375, 1.5, 1.625, 1.75,
        1.875, 2, 2.25, 2.5, 2.75, 3, 3.25, 3.5, 3.75, 4, 4.5, 5, 5.5, 6, 6.5, 7, 7.5,
    ],
    "e3m2@6": [
        0, 0.0625, 0.125, 0.1875, 0.25, 0.3125, 0.375, 0.4375, 0.5, 0.625, 0.75, 0.875, 1, 1.25,
        1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28,
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL_FLOATS)
def test_small_floats_match_gfloat(name: str) -> None:
    unsigned = [value / SMALL_FLOATS[name][-1] for value in SMALL_FLOATS[name]]
    close(values(f"{name}u"), unsigned)
    close(values(f"{name}s"), [-value for value in unsigned[:0:-1]] + unsigned)


def hif8(code: int) -> float:
    """A code of HiFloat8 by the paper's tables: sign, dot, exponent and fraction, bit by bit."""
    bits = f"{code:08b}"
    sign, rest = -1.0 if bits[0] == "1" else 1.0, bits[1:]
    if code in (0, 0x80):
        return 0.0 if code == 0 else math.nan
    dots = {"11": 4, "10": 3, "01": 2, "001": 1, "0001": 0, "0000": -1}
    dot = next(dot for dot in dots if rest.startswith(dot))
    width, rest = dots[dot], rest[len(dot) :]
    if width == -1:
        return sign * 2.0 ** (int(rest, 2) - 23)
    exponent, fraction = rest[:width], rest[width:]
    power = int("1" + exponent[1:], 2) * (-1 if exponent[0] == "1" else 1) if width else 0
    if (power, fraction) == (15, "1"):
        return sign * math.inf
    return sign * 2.0**power * (1 + int(fraction, 2) / 2 ** len(fraction))


# As numpy rounds to the type ``hifloat8`` of the package en-dtypes 0.0.4.
TO_HIF8 = {
    1.0625: 1.125, -1.0625: -1.125, 1.0624: 1.0, 3.875: 4.0, 4.25: 4.5, 7.75: 8.0, 14.6: 15.0,
    17.9: 16.0, 18.0: 20.0, -22.0: -24.0, 240.0: 256.0, 319.0: 256.0, 320.0: 384.0,
    28672.0: 32768.0, 0.06: 0.0625, 0.0029: 0.00292968750, 4e-5: 4.57763671875e-5,
    2.2888184e-5: 3.0517578125e-5, 1.1444092e-5: 1.52587890625e-5, 1.14e-5: 7.62939453125e-6,
    1.1920929e-7: 2.384185791015625e-7, 1.19e-7: 0.0, -3e-7: -2.384185791015625e-7,
}  # fmt: skip


def test_hifloat8() -> None:
    finite = sorted({value for value in map(hif8, range(256)) if math.isfinite(value)})
    assert len(finite) == 253
    close(values("hif8@8s"), [value / 2**15 for value in finite])
    close(values("hif8@8u"), [value / 2**15 for value in finite if value >= 0])
    q = qmaps.quantizer("unscaled/hif8@8s")
    close(q.map.codebook().tolist(), finite)
    decoded = q.quantize(torch.tensor(list(TO_HIF8))).dequantize()
    assert decoded.tolist() == list(TO_HIF8.values())
    # Under powers of two all values are exact, and ties go away from zero there too.
    mx = qmaps.quantizer("B4xe8m0/hif8@8s")
    close(mx.map.codebook().tolist(), [value / 2**16 for value in finite])
    x = torch.tensor([32768.0, 1.0625, -1.0625, 18.0])
    assert mx.quantize(x).dequantize().tolist() == [32768.0, 1.125, -1.125, 20.0]


def test_nf4_is_the_formula_of_qlora() -> None:
    offset = 0.9677083
    quantile = NormalDist().inv_cdf
    positive = [quantile(offset + i * (0.5 - offset) / 8) for i in range(8)]
    negative = [-quantile(offset + i * (0.5 - offset) / 7) for i in range(7)]
    expected = sorted([*negative, 0.0, *positive])
    assert values("nf4@4s") == pytest.approx([v / max(expected) for v in expected], abs=1e-6)


def test_quantiles_of_the_normal_distribution() -> None:
    levels = [(i + 0.5) / 256 for i in range(256)]
    quantile = NormalDist().inv_cdf
    signed = [quantile(level) for level in levels]
    assert values("quantile-normal@8s") == pytest.approx([v / signed[-1] for v in signed], rel=1e-5)
    half = [quantile((1 + level) / 2) for level in levels]
    assert values("quantile-normal@8u") == pytest.approx([v / half[-1] for v in half], rel=1e-5)


def test_powers_of_linear() -> None:
    for power in (2, 3):
        close(values(f"power{power}@4u"), [((i + 1) / 16) ** power for i in range(16)])
        signed = [-1 + 2 * i / 15 for i in range(16)]
        close(values(f"power{power}@4s"), [math.copysign(abs(v) ** power, v) for v in signed])


def test_log2_positions() -> None:
    close(values("log2@4u"), [-1.0, *(i / 14 for i in range(15))])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("DE@9s", (
            "spec='tensor/DE@9s': bits=9 is not allowed for signed DE; its widths are 2 to 8 "
            "bits"
        )),
        ("linear@17u", (
            "spec='tensor/linear@17u': bits=17 is not allowed for unsigned linear; its widths "
            "are 2 to 16 bits"
        )),
        ("nf4@3s", (
            "spec='tensor/nf4@3s': bits=3 is not allowed for signed nf4; its widths are 4 bits"
        )),
        ("nf4@4u", "spec='tensor/nf4@4u': nf4 must be signed (s), got unsigned (u)"),
        ("tree@2s", (
            "spec='tensor/tree@2s': bits=2 is not allowed for signed tree; its widths are 3 to "
            "8 bits"
        )),
        ("static-tree(tree_bits=7)@8s", (
            "spec='tensor/static-tree(tree_bits=7)@8s': tree_bits=7 must be between 1 and 6"
        )),
        ("mantissa(offset=x)@8s", "spec='tensor/mantissa(offset=x)@8s': offset='x' must be of type "
                                  "int"),
    ],
)  # fmt: skip
def test_values_outside_a_formula_are_refused(spec: str, message: str) -> None:
    with pytest.raises(qmaps.QmapsError) as caught:
        map_of(spec)
    assert str(caught.value) == message


def test_types_are_checked() -> None:
    for options, message in (
        ({"bits": "4"}, "bits='4' must be an int"),
        ({"bits": True}, "bits=True must be an int"),
        ({"bits": 4, "signed": 1}, "signed=1 must be True or False"),
    ):
        with pytest.raises(TypeError) as caught:
            qmaps.maps.DynamicExponent(**options)
        assert str(caught.value) == message
