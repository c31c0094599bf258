"""Averages, DDP hooks, split layers and sub-batches between real processes over gloo."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qmaps.distributed import comm
from qmaps.errors import BadTypeError, BadValueError
from reproduction.parallelism_2015._one_bit import one_bit_hook
from reproduction.parallelism_2015._sub_batches import SubBatches
from tests.distributed.comm import faults
from tests.distributed.comm.checks import CHECKS
from tests.distributed.comm.launch import launch

pytestmark = pytest.mark.slow

FOUR = (
    "averages_are_those_of_the_plain_quantizer",
    "bytes_are_those_on_the_wire",
    "hooks_train_like_plain_ddp",
    "exchanges_go_on_during_the_backward_pass",
    "ranks_that_differ_are_an_error_on_all",
    "nan_on_one_rank_is_an_error_on_all",
    "split_layers_are_the_layers_of_one_device",
    "sub_batches_give_the_gradients_of_one_device",
    "faults_are_errors_on_all",
)
"""Further checks of four ranks: those that depend on the number of ranks."""
NAMES = {2: tuple(CHECKS), 4: FOUR}


@pytest.fixture(scope="session")
def results(made_once: Callable[[str, Callable[[Path], None]], Path]) -> dict[str, Any]:
    """Results of all groups, started once; the start takes longer than most checks."""

    def make(folder: Path) -> None:
        checks = [("tests.distributed.comm.checks", world, NAMES[world]) for world in NAMES]
        *checked, killed = launch(folder, *checks, ("tests.distributed.comm.faults", 3, ()))
        text = json.dumps({"2": checked[0], "4": checked[1], "killed": killed})
        (folder / "results.json").write_text(text)

    loaded: dict[str, Any] = json.loads((made_once("ranks", make) / "results.json").read_text())
    return loaded


@pytest.mark.parametrize(("world", "name"), [(w, n) for w, names in NAMES.items() for n in names])
def test_all_ranks(world: int, name: str, results: dict[str, Any]) -> None:
    for rank, said in enumerate(results[str(world)]):
        assert said[name] == "passed", f"rank {rank}: {said[name]}"


def test_a_killed_rank_is_an_error_on_all_others(results: dict[str, Any]) -> None:
    *survivors, killed = results["killed"]
    assert killed is None
    for rank, said in enumerate(survivors):
        assert said["step"] == 2
        assert re.fullmatch(
            rf"rank {rank} of 3 could not exchange gradients 0: another rank has ended, has "
            r"failed, or did not answer within the group's timeout \(.+\)",
            said["said"],
        ), said
        # Not a timed assertion of speed: a hang would be without end.
        assert said["seconds"] < 3 * faults.TIMEOUT_S


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: comm.quantized_hook("B64/DE@8u"),
            "quantizer=B64/DE@8u is unsigned; messages need a signed map with a formula",
        ),
        (
            lambda: comm.quantized_hook("B64/lloyd@3s"),
            "quantizer=B64/lloyd@3s is fitted to data; messages need a signed map with a formula",
        ),
        (
            lambda: comm.quantized_hook("B64/linear@9s"),
            "quantizer=B64/linear@9s has 9 bits; messages must have 2 to 8",
        ),
        (
            lambda: comm.quantized_hook("B64/DE@8s", nonfinite="skip"),
            "nonfinite='skip' must be 'raise' or 'propagate'",
        ),
        (lambda: one_bit_hook(0), "block_size=0 must be at least 1"),
    ],
)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises(BadValueError) as caught:
        make()
    assert str(caught.value) == message


def test_only_floats_are_averaged() -> None:
    for x, kind in ((torch.ones(3, dtype=torch.int64), "torch.int64"), ([1.0], "list")):
        with pytest.raises(BadTypeError) as caught:
            comm.average(x, "B64/DE@8s")
        assert str(caught.value) == (f"x must be a float32, float16 or bfloat16 tensor, got {kind}")


def test_bad_sizes_of_sub_batches() -> None:
    for size in (0, 1.5):
        with pytest.raises(BadValueError) as caught:
            SubBatches(size=size)
        assert str(caught.value) == f"size={size!r} must be an int of at least 1, or None"
