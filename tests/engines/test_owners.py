"""Owners of matrices, and the rounds of their exchange."""

from __future__ import annotations

from qmaps.engines.sharding.owners import Loads, Matrix, rounds, spread
from qmaps.engines.sharding.shards import Box


def matrix(rows: int, ranks: tuple[int, ...] = (4, 5)) -> Matrix:
    boxes = tuple(Box(rank, (0, 0), (rows // len(ranks), 8)) for rank in ranks)
    return Matrix((rows, 8), boxes, -1, None)


def owners(loads: Loads, *matrices: Matrix) -> list[int]:
    return [matrix.owner for matrix in spread(matrices, loads)]


def test_the_largest_are_spread_first_to_who_has_least() -> None:
    loads: Loads = {}
    assert owners(loads, *map(matrix, (2, 16, 4, 10, 4))) == [4, 4, 5, 5, 5]
    assert loads == {(4, 5): [8 * 18, 8 * 18]}
    # What comes later is added, and processes of other matrices have loads of their own.
    assert owners(loads, matrix(2), matrix(8), matrix(8, (5, 6))) == [5, 4, 5]


def test_a_round_has_one_matrix_for_each_owner() -> None:
    shapes = (2, 16, 4, 10, 4)
    ours = [*map(matrix, shapes), matrix(16, (4, 7))]
    batches = rounds(spread(ours, {}))
    assert batches == [[1, 3], [0, 2], [4], [5]]
