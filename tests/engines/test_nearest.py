"""The nearest code against brute force in exact fractions, on hard codebooks."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qmaps import Codebook, RoundingKey
from qmaps.engines import reference

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def hard_codebooks(draw: st.DrawFn) -> list[float]:
    """Huge ratios, subnormal gaps, neighbouring floats, and both signs of everything."""
    values: set[float] = set(draw(st.lists(finite, max_size=6)))
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["ratio", "subnormal", "adjacent"]))
        if kind == "ratio":
            values |= {float(np.float32(10.0**-k)) for k in draw(st.sets(st.integers(-38, 44)))}
        elif kind == "subnormal":
            values |= {k * 2.0**-149 for k in draw(st.sets(st.integers(-40, 40)))}
        else:
            start = np.float32(draw(finite.filter(lambda v: abs(v) < 1e38)))
            for _ in range(draw(st.integers(1, 5))):
                values.add(float(start))
                start = np.nextafter(start, np.float32(np.inf))
    values.add(0.0)  # one zero, whichever its sign
    return sorted(values | ({1.0} if len(values) < 2 else set()))


def brute_force(n: float, codebook: list[Fraction]) -> int:
    """The first code of least distance: a tie goes to the lower."""
    distances = [abs(Fraction(n) - value) for value in codebook]
    return distances.index(min(distances))


@settings(max_examples=150, deadline=None)
@given(values=hard_codebooks(), free=st.lists(finite, max_size=10))
def test_nearest_of_hard_codebooks(values: list[float], free: list[float]) -> None:
    map_ = Codebook(values, label="hard")
    codebook = map_.codebook()
    assert codebook.tolist() == values
    up, down = torch.tensor(torch.inf), torch.tensor(-torch.inf)
    points = torch.cat([codebook, map_.thresholds(), torch.tensor(free)])
    n = torch.cat([points, torch.nextafter(points, up), torch.nextafter(points, down)])
    n = n[n.isfinite()]
    exact = [Fraction(value) for value in values]
    assert reference.encode(n, map_).tolist() == [brute_force(v, exact) for v in n.tolist()]


def test_ties_go_to_the_lower_code() -> None:
    map_ = Codebook([-1.0, -0.5, 0.0, 0.5, 1.0], label="even")
    n = torch.tensor([-0.75, -0.25, 0.25, 0.75])
    assert reference.encode(n, map_).tolist() == [0, 1, 2, 3]


def test_a_sum_that_float64_rounds_is_no_tie() -> None:
    for low, code in ((-1e-30, 1), (0.0, 0), (1e-30, 0)):  # 0.5 is above, at, below the middle
        map_ = Codebook([low, 1.0], label="far")
        assert reference.encode(torch.tensor([0.5]), map_).tolist() == [code]


def test_a_midpoint_that_is_no_float32_is_not_rounded_into_a_tie() -> None:
    # The middle of 1 and 1 + 3 ulp lies between two float32 numbers; of 0 and 2**-149, too.
    ulp = 2.0**-23
    map_ = Codebook([1.0, 1 + 3 * ulp], label="odd")
    assert reference.encode(torch.tensor([1 + ulp, 1 + 2 * ulp]), map_).tolist() == [0, 1]
    subnormal = Codebook([0.0, 2.0**-149], label="least")
    assert reference.encode(torch.tensor([0.0, 2.0**-149]), subnormal).tolist() == [0, 1]
    # The sum needs more digits than float64 has; the lower code is nearer by a hair, or not.
    for hair, expected in ((2.0**-100, 1), (-(2.0**-100), 0)):
        map_ = Codebook([-1.0, 1.0 + ulp] if hair == 0 else [-1.0 + 0.0, 1.0], label="a")
        assert reference.encode(torch.tensor([hair]), map_).tolist() == [expected]


def test_the_sum_of_neighbours_is_not_rounded_to_float64() -> None:
    # 1 + 2**-80 rounds to 1 in float64, which would make 0.5 a tie and send it down.
    for low, expected in ((2.0**-80, 0), (-(2.0**-80), 1)):
        map_ = Codebook([low, 1.0], label="wide")
        assert reference.encode(torch.tensor([0.5]), map_).tolist() == [expected]


@settings(max_examples=100, deadline=None)
@given(values=hard_codebooks(), seed=st.integers(0, 2**32 - 1))
def test_stochastic_rounding_of_hard_codebooks_takes_a_neighbour(
    values: list[float], seed: int
) -> None:
    map_ = Codebook(values, label="hard")
    codebook = map_.codebook()
    limits = map_.thresholds()
    codes = reference.encode_stochastic(limits, map_, RoundingKey(seed=seed)).tolist()
    assert all(code in (lower, lower + 1) for lower, code in enumerate(codes))
    at_values = reference.encode_stochastic(codebook, map_, RoundingKey(seed=seed))
    assert at_values.tolist() == list(range(len(values)))
