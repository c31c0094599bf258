"""Maps fitted to data."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import qmaps
from qmaps.engines import reference
from qmaps.maps import LloydMax, Quantile
from qmaps.maps.fitted import FittedMap
from tests.helpers import fitted_maps, formula_maps


def distributions() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    normal = torch.randn(20_000, generator=g)
    return {
        "normal": normal / normal.abs().max(),
        "laplace": torch.from_numpy(np.random.default_rng(0).laplace(size=20_000)).float() / 12,
        "lognormal": (3 * normal).exp() / (3 * normal).exp().max(),
        "bimodal": torch.cat([normal / 20 - 0.7, normal / 50 + 0.4]).clamp(-1, 1),
        "few": torch.tensor([0.1, 0.4, -0.3, 1.0, 0.99]),
        "constant": torch.full((50,), 0.25),
        "one": torch.tensor([0.5]),
    }


def mse(codebook: torch.Tensor, x: torch.Tensor, w: torch.Tensor | None = None) -> float:
    values, x = codebook.double().unique(), x.double()
    error = (x - values[torch.bucketize(x, (values[:-1] + values[1:]) / 2)]).square()
    w = torch.ones_like(error) if w is None else w.double()
    return float((w * error).sum() / w.sum())


def optimum(x: list[float], w: list[float], size: int) -> float:
    """The least error of a partition of sorted data into intervals, by dynamic programming."""
    order = sorted(range(len(x)), key=x.__getitem__)
    x, w = [x[i] for i in order], [w[i] for i in order]
    n = len(x)

    def cost(i: int, j: int) -> float:
        mass = sum(w[i:j])
        mean = sum(a * b for a, b in zip(w[i:j], x[i:j], strict=True)) / mass
        return sum(a * (b - mean) ** 2 for a, b in zip(w[i:j], x[i:j], strict=True))

    best = [0.0] + [cost(0, j) for j in range(1, n + 1)]
    for _ in range(size - 1):
        best = [0.0] + [
            min(best[i] + (cost(i, j) if i < j else 0.0) for i in range(j + 1))
            for j in range(1, n + 1)
        ]
    return best[n] / sum(w)


@pytest.mark.parametrize("name", distributions())
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_no_map_of_the_width_beats_lloyd(name: str, bits: int) -> None:
    x = distributions()[name]
    fitted = LloydMax(bits=bits).fit(x).codebook()
    assert fitted.numel() == 2**bits
    assert bool((fitted.diff() >= 0).all())
    limit = mse(fitted, x)
    rivals = [m for m in formula_maps() if m.bits == bits and m.signed] + [
        Quantile(bits=bits).fit(x),
        Quantile(bits=bits, midpoints=True).fit(x),
    ]
    for rival in rivals:
        # If the error is zero, only the float32 rounding of the codebook remains.
        assert limit <= mse(rival.codebook(), x) * (1 + 1e-6) + 1e-15, rival


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weighted", [False, True])
def test_lloyd_is_the_global_optimum_of_small_data(seed: int, weighted: bool) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(60, generator=g) * torch.exp(torch.randn(60, generator=g))
    w = torch.rand(60, generator=g).square() if weighted else torch.ones(60)
    for bits in (2, 3):
        best = optimum(x.tolist(), w.tolist(), 2**bits)
        actual = mse(LloydMax(bits=bits).fit(x, w).codebook(), x, w)
        assert best * (1 - 1e-5) <= actual <= best * 1.001


@pytest.mark.parametrize("span", [0, 4, 12])
def test_lloyd_beats_every_map_under_blocks_of_unlike_scales(span: int) -> None:
    g = torch.Generator().manual_seed(span)
    x = torch.randn(128, 64, generator=g) * torch.logspace(-span, 0, 128)[:, None]
    fitted = qmaps.quantizer("B64/lloyd@4s")
    actual = fitted.error(x)["mse"]
    codebook = fitted.fit(x).map.codebook()
    assert float(codebook.abs().max()) <= 1
    rivals = [m for m in formula_maps() if m.bits == 4 and m.signed]
    for rival in [*rivals, *fitted_maps(4)]:
        if rival.signed:
            assert actual <= (fitted.normalizer / rival).error(x)["mse"] * (1 + 1e-6), rival


def test_lloyd_under_blocks_minimizes_the_error_of_the_tensor() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(64, 256, generator=g) * torch.exp(2 * torch.randn(64, 1, generator=g))
    q = qmaps.quantizer("B256/lloyd@3s")
    fitted = q.error(x)["mse"]
    n = q.normalizer.normalize(x, q.normalizer.scales(x))
    unweighted = q.normalizer / LloydMax(bits=3).fit(n)
    assert fitted < unweighted.error(x)["mse"]
    for rival in ("DE", "linear", "quantile", "power2"):
        assert fitted < qmaps.quantizer(f"B256/{rival}@3s").error(x)["mse"]


@pytest.mark.parametrize("bits", [4, 8])
def test_quantile_uses_every_code_equally(bits: int) -> None:
    """To 1e-3 bits at 8 bits; at 4, the tails of a normal are uneven between two quantiles.

    Samples have a million values; counts of smaller ones scatter more.
    """
    g = torch.Generator().manual_seed(0)
    q = qmaps.quantizer(f"tensor/quantile@{bits}s")
    for x in (torch.rand(1_000_000, generator=g) - 0.5, torch.randn(1_000_000, generator=g)):
        allowed = 1e-3 if bits == 8 else 2e-3
        assert bits - allowed < q.error(x)["code_entropy"] <= bits


def test_quantile_is_the_quantile_function_of_the_normalized_values() -> None:
    x = torch.randn(4001, generator=torch.Generator().manual_seed(0))
    map_ = qmaps.quantizer("tensor/quantile@4s").fit(x).map
    levels = (np.arange(16) + 0.5) / 16
    expected = np.quantile((x / x.abs().max()).double().numpy(), levels)
    assert map_.codebook().tolist() == pytest.approx(expected.tolist(), rel=1e-6)


def test_equation_five_takes_midpoints_of_neighbouring_quantiles() -> None:
    x = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    edges = np.quantile(x.double().numpy(), np.linspace(0, 1, 17))
    expected = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
    actual = Quantile(bits=4, signed=False, midpoints=True).fit(x).codebook().tolist()
    assert actual == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("map_", fitted_maps(3), ids=str)
@pytest.mark.parametrize("values", [[0.25] * 9, [0.0] * 9, [0.5], [0.0, 0.0, 0.0, 1.0, 1.0]])
def test_ties_give_equal_codes_the_lowest_of_which_is_taken(
    map_: FittedMap, values: list[float]
) -> None:
    x = torch.tensor(values)
    fitted = map_.fit(x)
    codebook = fitted.codebook()
    assert codebook.numel() == 8
    assert bool((codebook.diff() >= 0).all())
    codes = reference.encode(codebook, fitted)
    assert codes.tolist() == torch.searchsorted(codebook, codebook).tolist()
    stochastic = reference.encode_stochastic(codebook, fitted, qmaps.RoundingKey())
    assert torch.equal(stochastic, codes)
    assert torch.equal(reference.decode(codes, fitted), codebook)
    for sr in ("", "+sr"):
        t = qmaps.quantizer(f"tensor/{map_.spec}{sr}").quantize(x)
        if len(set(values)) == 1:
            assert t.dequantize().tolist() == values
        assert bool(t.dequantize().isfinite().all())


@pytest.mark.parametrize("map_", fitted_maps(3), ids=str)
def test_nothing_is_fitted_to_nan_and_infinity(map_: FittedMap) -> None:
    x = torch.tensor([0.5, math.nan, math.inf, 0.25])
    with pytest.raises(qmaps.errors.NonFiniteError) as caught:
        map_.fit(x)
    assert str(caught.value) == (
        f"values holds 2 NaN or infinite elements; {map_.spec} can only be fitted to finite values"
    )


def test_fit_freezes_the_codebook_and_it_is_counted() -> None:
    x, unlike = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0))
    q = qmaps.quantizer("B128/quantile@4s")
    with pytest.raises(ValueError, match="no codebook until it is fitted"):
        q.map.codebook()
    frozen = q.fit(x)
    assert str(frozen) == str(q)
    assert frozen.fit(unlike) == frozen
    assert frozen.quantize(unlike).quantizer == frozen
    assert q.quantize(x).nbytes == 500 + 4 * 8 + 4 * 16
    assert qmaps.quantizer("B128/DE@4s").fit(x) == qmaps.quantizer("B128/DE@4s")


def test_codebooks_of_users() -> None:
    codebook = qmaps.Codebook([1.0, -1.0, 0.25], label="mine")
    assert (codebook.bits, codebook.signed, codebook.spec) == (2, True, "mine@2s")
    assert codebook.codebook().tolist() == [-1.0, 0.25, 1.0]
    q = qmaps.quantizer("b64/MINE@2", codebooks=[codebook])
    assert str(q) == "B64/mine@2s"
    x = torch.tensor([0.9, -0.3, 0.2])
    assert q.quantize(x).dequantize().tolist() == pytest.approx([0.9, 0.225, 0.225])


def test_codebooks_without_a_label_are_named_by_their_values() -> None:
    first, same, unlike = (qmaps.Codebook(v) for v in ([1.0, -1.0], [-1.0, 1.0], [-1.0, 0.5]))
    assert first == same
    assert first.spec == "codebook-c1112024@1s"  # on every machine
    assert unlike.spec != first.spec
    q = qmaps.quantizer(f"B64/{first.spec}", codebooks=[first, same, unlike])
    assert q.map == first


def test_two_codebooks_with_one_label_are_refused_where_a_spec_names_it() -> None:
    books = [qmaps.Codebook(values, label=label) for values, label in
             (([-1.0, 1.0], "mine"), ([-1.0, 0.5], "Mine"))]  # fmt: skip
    with pytest.raises(qmaps.errors.SpecError) as error:
        qmaps.quantizer("B64/mine@1s", codebooks=books)
    assert str(error.value) == (
        "spec='B64/mine@1s': two different codebooks have the label 'mine'; each needs its own "
        "label"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": [1.0]}, "values has 1 entries; 2 to 65536 are allowed"),
        ({"values": [1.0, float("nan")]},
         "values holds NaN or infinity; only finite numbers are allowed"),
        ({"values": [1.0, 1.0]}, "values holds equal numbers (as float32); they must be distinct"),
        ({"values": [-1.0, 1.0], "signed": False},
         "values holds -1.0, which is negative; an unsigned codebook has no negative values"),
        ({"values": range(5), "bits": 2},
         "bits=2 must be between 3 and 16 to hold 5 values"),
        ({"values": range(5), "bits": 17},
         "bits=17 must be between 3 and 16 to hold 5 values"),
        ({"values": range(5), "bits": "4"}, "bits='4' must be an int"),
        ({"values": range(5), "bits": True}, "bits=True must be an int"),
        ({"values": range(65537)}, "values has 65537 entries; 2 to 65536 are allowed"),
        ({"values": [0.0, -0.0]},
         "values holds equal numbers (as float32); they must be distinct"),
        ({"values": [0.0, 1.0], "label": "DE"}, "label='DE' is the name of a built-in map"),
        ({"values": [0.0, 1.0], "label": "a/b"},
         "label='a/b' must be a letter followed by letters, digits, '_', '.' or '-'"),
    ],
)  # fmt: skip
def test_bad_codebooks(arguments: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        qmaps.Codebook(**arguments)
    assert isinstance(caught.value, qmaps.QmapsError)
    assert str(caught.value) == message
