"""Distances between codes, and second moments of 0."""

from __future__ import annotations

import torch

import qmaps
from qmaps.algebra.pair import zero_points
from qmaps.ops import gaps


def test_the_gap_is_the_distance_to_the_next_code_on_the_side_of_the_movement() -> None:
    q = qmaps.quantizer(
        "B4/mine@3s", codebooks=[qmaps.Codebook([-1, -0.25, 0, 0.5, 1], label="mine")]
    )
    t = q.quantize(torch.tensor([8.0, -2.0, 0.0, 4.0]))  # codes 4, 1, 2, 3
    up, down = torch.full((4,), 0.1), torch.full((4,), -0.1)
    assert gaps.gap(t, up).tolist() == [0, 2, 4, 4]
    assert gaps.gap(t, down).tolist() == [4, 6, 2, 4]
    assert gaps.moved(t, torch.tensor([9.0, 2.5, -2.5, -4.0])).tolist() == [
        False,
        True,
        True,
        False,
    ]


def test_a_zero_that_was_one_before_is_no_zero_point() -> None:
    m, v = torch.tensor([1.0, 1.0, 0.0, 1.0]), torch.tensor([0.0, 0.0, 0.0, 2.0])
    exact = torch.tensor([1e-9, 0.0, 1e-9, 2.0])
    assert zero_points(m, v, exact).tolist() == [True, False, False, False]
