"""Codebooks of users under one spec: results tell them apart or refuse them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch

import qmaps
from qmaps import analyze
from qmaps.algebra.pair import Pair
from qmaps.errors import BadValueError
from qmaps.normalize import BlockWise

VALUES = [-1, -0.5, 0, 1.0], [-1, -0.01, 0, 1.0]
STATES = {
    "a": {
        "exp_avg": torch.linspace(-1, 1, 48 * 128).reshape(48, 128),
        "exp_avg_sq": torch.linspace(0.1, 2, 48 * 128).reshape(48, 128),
    }
}
RESULTS: dict[str, tuple[Callable[[list[Any]], pd.DataFrame], str]] = {
    "sweep of pairs": (lambda pairs: qmaps.sweep.run(STATES, pairs), "pairs"),
    "sweep": (lambda quantizers: qmaps.sweep.run(STATES, quantizers), "quantizers"),
    "replay": (lambda pairs: qmaps.replay.run(STATES, pairs, steps=2), "pairs"),
    "recommend": (
        lambda pairs: qmaps.recommend(STATES, bits=8, candidates=pairs, steps=2).pairs, "pairs",
    ),
    "update_error": (lambda pairs: analyze.update_error(STATES, pairs), "pairs"),
    "code_pairs": (lambda pairs: analyze.code_pairs(STATES, pairs), "pairs"),
    "first_code_error": (lambda pairs: analyze.first_code_error(STATES, pairs), "pairs"),
    "histogram": (
        lambda quantizers: analyze.histogram(STATES["a"]["exp_avg"], quantizers), "quantizers",
    ),
    "inverse_sqrt": (lambda quantizers: analyze.inverse_sqrt(STATES, quantizers), "quantizers"),
    "map_curves": (lambda maps: analyze.map_curves(maps), "maps"),
}  # fmt: skip


def specs(form: str, **options: str) -> list[Any]:
    """One spec for each of `VALUES`: a map, a quantizer or a pair."""
    maps = [qmaps.Codebook(values, **options) for values in VALUES]
    if form == "maps":
        return maps
    quantizers = [BlockWise(128) / map_ for map_ in maps]
    if form == "quantizers":
        return quantizers
    return [Pair(q, qmaps.quantizer("B128/DE-0@4u")) for q in quantizers]


@pytest.mark.parametrize("name", RESULTS)
def test_codebooks_without_labels_have_rows_of_their_own(name: str) -> None:
    result, form = RESULTS[name]
    frame = result(specs(form))
    names = frame["map" if form == "maps" else "quantizer"]
    first, second = (spec.spec for spec in specs(form))
    assert first != second
    assert {first, second} <= set(names)


@pytest.mark.parametrize("name", RESULTS)
def test_different_codebooks_with_one_label_are_refused(name: str) -> None:
    result, form = RESULTS[name]
    with pytest.raises(BadValueError) as error:
        result(specs(form, label="mine"))
    shown = "mine@2s" if form == "maps" else "B128/mine@2s"
    assert str(error.value) == (
        f"two different codebooks have the spec {shown!r}; each needs its own label"
    )


def test_frozen_codebooks_of_two_tensors_are_refused() -> None:
    lloyd = qmaps.quantizer("B128/lloyd@3s")
    frozen = [lloyd.fit(x) for x in (torch.linspace(-1, 1, 256), torch.linspace(-1, 1, 256) ** 3)]
    with pytest.raises(BadValueError, match="two different codebooks have the spec"):
        qmaps.sweep.run(STATES, frozen)
