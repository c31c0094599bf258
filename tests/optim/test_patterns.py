"""Patterns match exactly the parameters of the overrides they replace."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qmaps.optim.groups import grouped

PARTS = st.sampled_from(["a", "ab", "0", "1", "2", "10", "12", "21", "*", "[1]", "?", "", "\u0661"])
NAMES = st.lists(PARTS, min_size=1, max_size=4).map(".".join)


def resolved(patterns: dict[str, int], names: list[str]) -> dict[str, int]:
    """An optimizer's choice: the value of the first matching pattern."""
    results = {
        name: next((value for p, value in patterns.items() if fnmatchcase(name, p)), None)
        for name in names
    }
    return {name: value for name, value in results.items() if value is not None}


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(NAMES, st.sampled_from([None, 1, 2]), max_size=14))
def test_every_parameter_resolves_as_before(values: dict[str, int | None]) -> None:
    overrides = {name: value for name, value in values.items() if value is not None}
    patterns = grouped(overrides, values)
    assert resolved(patterns, list(values)) == overrides
    assert len(patterns) <= len(overrides)
    # In any order, and none is idle.
    backwards = dict(reversed(patterns.items()))
    assert resolved(backwards, list(values)) == overrides
    for pattern in patterns:
        assert any(fnmatchcase(name, pattern) for name in overrides)


@pytest.mark.parametrize(
    ("chosen", "patterns"),
    [
        (lambda n, part: part == "q.weight", ["layers.*.q.weight"]),
        (lambda n, part: part != "norm", ["layers.*.weight"]),
        (lambda n, part: n == 3, ["layers.3.*"]),
        (lambda n, part: n in (3, 4, 5) and part == "norm", ["layers.[3-5].norm"]),
        (lambda n, part: n in (3, 5) and part == "norm", ["layers.[35].norm"]),
        (lambda n, part: n > 8 and part == "norm", ["layers.1[01].norm", "layers.9.norm"]),
        (lambda n, part: n == 11 and part == "norm", ["layers.11.norm"]),
    ],
)
def test_patterns_group_parameters_with_equal_overrides(chosen, patterns: list[str]) -> None:
    names = [f"layers.{n}.{p}" for n in range(12) for p in ("q.weight", "k.weight", "norm")]
    overrides = {
        name: 1 for name in names if chosen(int(name.split(".")[1]), name.split(".", 2)[2])
    }
    assert list(grouped(overrides, names)) == patterns


def test_names_without_a_dot_and_all_of_them() -> None:
    assert grouped({}, ["a"]) == {}
    assert grouped({"a[0]": 1}, ["a0"]) == {"a[[]0]": 1}
    assert grouped({"a.b": 1, "c": 1}, []) == {"*": 1}
