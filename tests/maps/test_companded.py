"""Maps with rounding in a transformed domain."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import pytest
import torch

import qmaps
from qmaps.maps.base import Map
from qmaps.testing import forms
from tests.flashoptim import FIRST_CODES, SECOND_CODES, moments

INVERSES = {
    "softsign": lambda y: y / (2 - abs(y)),
    "sqrt": lambda y: y * abs(y),
}


def transforms(map_: Map) -> list[Fraction]:
    """The values of linear0, exactly."""
    top = 2 ** (map_.bits - map_.signed) - 1
    return [Fraction(k, top) for k in range(-top if map_.signed else 0, top + 1)]


@pytest.mark.parametrize("name", INVERSES)
def test_values_and_thresholds_are_exact(name: str) -> None:
    """A threshold is the last float32 up to the midpoint of the transform."""
    for map_ in forms(qmaps.maps.REGISTRY[name]):
        exact = transforms(map_)
        values = [float(INVERSES[name](y)) for y in exact]
        assert (
            map_.codebook().tolist() == torch.tensor(values, dtype=torch.float64).float().tolist()
        )
        limits = map_.thresholds()
        after = torch.nextafter(limits, torch.tensor(torch.inf))
        halfway = [INVERSES[name]((a + b) / 2) for a, b in pairwise(exact)]
        for last, first, between in zip(limits.tolist(), after.tolist(), halfway, strict=True):
            assert Fraction(last) <= between < Fraction(first), map_


def test_mu_law() -> None:
    for bits, mu in ((8, 255), (4, 15), (6, 100000)):
        map_ = qmaps.quantizer(f"tensor/mu-law(mu={mu})@{bits}s").map
        top = 2 ** (bits - 1) - 1
        book = map_.codebook().double()
        codes = book.sign() * (book.abs() * mu).log1p() / math.log1p(mu) * top
        assert codes.tolist() == pytest.approx(list(range(-top, top + 1)), abs=1e-4)
        limits = map_.thresholds().double()
        between = limits.sign() * (limits.abs() * mu).log1p() / math.log1p(mu) * top
        assert between.tolist() == pytest.approx([k + 0.5 for k in range(-top, top)], abs=1e-4)
    for mu in (0, 2**20 + 1):
        with pytest.raises(qmaps.errors.SpecError) as caught:
            qmaps.quantizer(f"tensor/mu-law(mu={mu})@4s")
        assert str(caught.value).endswith(f": mu={mu} must be between 1 and 1048576")


def test_rounding_to_the_nearest_value_is_an_option() -> None:
    x = torch.linspace(0, 1, 10001)
    for name in ("softsign", "sqrt", "mu-law"):
        transformed, nearest = (
            qmaps.quantizer(f"tensor/{name}{field}@4u") for field in ("", "(nearest=true)")
        )
        assert torch.equal(transformed.map.codebook(), nearest.map.codebook())
        book = nearest.map.codebook()
        distance = (x[:, None].double() - book.double()).abs()
        ours, theirs = (q.quantize(x) for q in (transformed, nearest))
        chosen = distance.gather(1, theirs.codes().long()[:, None])[:, 0]
        assert torch.equal(chosen, distance.amin(1))
        assert not torch.equal(ours.codes(), theirs.codes())


def test_codes_of_flashoptim() -> None:
    first, second = moments()
    assert (
        qmaps.quantizer("B32/softsign@8s").quantize(first).codes() - 127
    ).tolist() == FIRST_CODES
    assert qmaps.quantizer("B32/sqrt@8u").quantize(second).codes().tolist() == SECOND_CODES
