"""The matrices of a model, by block."""

from __future__ import annotations

import re

from torch import Tensor

from qmaps.analyze.states import MIN_SIZE
from qmaps.capture import CapturedStates

BLOCKS = 6
"""At most so many blocks are shown, spread over the model's depth."""
PARTS = ("query", "key", "value")


def matrices(states: CapturedStates, state: str) -> dict[str, Tensor]:
    """A state of every matrix of more than 4096 elements; query, key and value apart."""
    by_name: dict[str, Tensor] = {}
    for name in states.parameters():
        if state not in states.states(name) or len(states.shape(name, state)) < 2:
            continue
        tensor = states.tensor(name, state).flatten(1)
        if tensor.numel() <= MIN_SIZE:
            continue
        title = name.removesuffix(".weight")
        if tensor.shape[0] == 3 * tensor.shape[1]:
            by_name |= {f"{title} {p}": t for p, t in zip(PARTS, tensor.chunk(3), strict=True)}
        else:
            by_name[title] = tensor
    return by_name


def in_blocks(moments: dict[str, Tensor]) -> dict[str, Tensor]:
    """The matrices of blocks; all if there are no blocks.

    Embeddings and output layers have rows of rare tokens. All large values of such a matrix are in
    the other rows, in any model. Matrices with rows of zeros are left out for the same reason,
    unless there are no others.
    """
    members = blocks(list(moments), max(2, len(moments))).values()
    shown = {name: moments[name] for names in members for name in names}
    return {name: m for name, m in shown.items() if bool(m.any(dim=1).all())} or shown


def blocks(names: list[str], limit: int = BLOCKS) -> dict[str, list[str]]:
    """Names grouped by their text up to the last number; names without a number are in no block.

    More than `limit` blocks (at least two) are thinned out evenly; the first and the last stay.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        match = re.match(r".*\.\d+(?=\.)", name)
        if match:
            groups.setdefault(match[0], []).append(name)
    several = [name for name, members in groups.items() if len(members) > 1] or list(groups)
    if len(several) > limit:
        last = len(several) - 1
        several = [several[number * last // (limit - 1)] for number in range(limit)]
    return {name: groups[name] for name in several} or {"all": names}
