"""Options that an optimizer does not have: which are mistakes, and what the error says.

Schedulers, trainers and users keep values of their own in parameter groups (`initial_lr`,
`lr_scale`, `name`), so a group may have any key that is not mistaken for an option.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from qmaps.errors import BadTypeError, nearest, shown
from qmaps.optim.other_libraries import instead_in_groups, instead_of

OF_CLASSES = ("block_size", "blocksize")
"""Options that only constructors of classes of one width have."""
SHORTEST = 4
"""Letters of the shortest option whose misspellings are looked for: too much is near to `lr`."""
LONG = 12
"""Letters from which on two wrong letters still tell which option was meant."""


def refuse_option(owner: str, name: str, value: object, options: Iterable[str]) -> None:
    """Raise because an optimizer does not have an option that its constructor was given.

    Args:
        owner: the optimizer's name.
        name: the option.
        value: its value.
        options: the options that the optimizer has.

    Raises:
        BadTypeError: always.
    """
    why = instead_of(name) or meant(name, options)
    if name in OF_CLASSES:
        why = "; classes of one width have it, such as AdamW8bit, and specs, such as B256/DE@8s"
    raise BadTypeError(f"{name}={shown(value)} is not an option of {owner}{why}")


def check_keys(owner: str, group: Mapping[str, Any], options: Iterable[str]) -> None:
    """Raise if a key of a parameter group looks like an option, but is none.

    Args:
        owner: the optimizer's name.
        group: the parameter group.
        options: the options that the optimizer's groups have.

    Raises:
        BadTypeError: a key is an option of another library, or a misspelt one of this optimizer.
    """
    known = list(options)
    for name, value in group.items():
        if name in known or name in ("params", "param_names") or not isinstance(name, str):
            continue
        why = instead_in_groups(name)
        if name in OF_CLASSES:
            why = "; a spec in the group's state_quantizers has the block size, such as B128/DE@4s"
        if why or (why := meant(name, known)):
            raise BadTypeError(
                f"{name}={shown(value)} is not an option of a parameter group of {owner}{why}"
            )


def meant(name: str, options: Iterable[str]) -> str:
    """A hint which option a misspelt name stands for, or ``""`` if it is near to none.

    >>> meant("state_quantizer", ["lr", "state_quantizers"])
    '; nearest match: state_quantizers'
    >>> meant("max_momentum", ["lr", "momentum"])
    ''
    """
    known = list(options)
    folded = name.lower().replace("-", "_")
    if "quantizer" in folded:  # nothing but qmaps has such a key
        return nearest(folded, [option for option in known if "quantizer" in option])
    for option in known:
        most = 0 if len(option) < SHORTEST else 1 if len(option) < LONG else 2
        if distance(folded, option) <= most:
            return f"; nearest match: {option}"
    return ""


def distance(one: str, other: str) -> int:
    """Number of insertions, deletions, replacements and swaps that make two words equal.

    >>> distance("nonfinite", "nonfiniet"), distance("seeds", "seed")
    (1, 1)
    """
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        row_before, before, row = before, row, [i]
        for j, b in enumerate(other, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                cost = min(cost, row_before[j - 2] + 1)
            row.append(cost)
    return row[-1]
