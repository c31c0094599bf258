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
    """That state of every matrix of more than 4096 elements; query, key and value apart."""
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

    Embeddings and output layers have rows of tokens that hardly ever came. All large values of
    such a matrix lie in the other rows, whatever the model. Matrices with rows of nothing but 0 are
    left out for the same reason, unless there are no others.
    """
    members = blocks(list(moments), max(2, len(moments))).values()
    shown = {name: moments[name] for names in members for name in names}
    return {name: m for name, m in shown.items() if bool(m.any(dim=1).all())} or shown


def blocks(names: list[str], most: int = BLOCKS) -> dict[str, list[str]]:
    """Names by what stands up to their last number; the rest is in no block.

    More than `most` blocks (at least two) are thinned out evenly, the first and the last kept.
    """
    found: dict[str, list[str]] = {}
    for name in names:
        match = re.match(r".*\.\d+(?=\.)", name)
        if match:
            found.setdefault(match[0], []).append(name)
    several = [name for name, members in found.items() if len(members) > 1] or list(found)
    if len(several) > most:
        last = len(several) - 1
        several = [several[number * last // (most - 1)] for number in range(most)]
    return {name: found[name] for name in several} or {"all": names}
