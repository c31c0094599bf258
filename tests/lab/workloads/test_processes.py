"""Training runs in processes: the bits of one process, checkpoints at Ctrl-C, and named errors."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from qmaps.errors import BadValueError, CommunicationError
from qmaps.lab import Contender, compare, workloads
from qmaps.lab.workloads.processes import Trainings, _train

pytestmark = pytest.mark.slow

WORK = dataclasses.replace(workloads.get("digits"), batch_size=4)
ENTRANT = Contender("AdamW 8bit", "8bit")
STEPS = 8


@pytest.fixture
def _sigint() -> Iterator[None]:
    """Restore the handler of Ctrl-C; processes for trainings ignore it."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def slow(optimizer: torch.optim.Optimizer, _: nn.Module) -> Iterator[None]:
    """A hook that sleeps, so the main process can stop a run."""
    optimizer.register_step_post_hook(lambda *_: time.sleep(0.1))
    yield


class UnpicklableError(Exception):
    """An error that pickles and fails to unpickle."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def failing(optimizer: torch.optim.Optimizer, _: nn.Module) -> None:
    raise UnpicklableError("no ", "luck")


def dying(optimizer: torch.optim.Optimizer, _: nn.Module) -> None:
    """A hook that kills the process, like the system when memory runs out."""
    os._exit(9)


def test_a_run_in_a_process_stops_and_resumes_with_the_bits_of_this_one(tmp_path: Path) -> None:
    (serial,) = compare(WORK, [ENTRANT], out=tmp_path / "serial", steps=STEPS, workers=1)
    options = {"out": tmp_path / "pool", "steps": STEPS, "workers": 2}
    hooks = {(ENTRANT.label, 0): [slow]}
    folder = tmp_path / "pool" / "adamw-8bit-seed0"

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(WORK, [ENTRANT], **options, hooks=hooks, progress=interrupted)
    assert (folder / "checkpoint.pt").exists()
    steps: list[tuple[object, ...]] = []
    (resumed,) = compare(
        WORK,
        [ENTRANT],
        **options,
        hooks=hooks,
        progress=lambda *progress: steps.append(progress[:3]),
    )
    assert 1 < steps[0][1] <= STEPS
    assert steps[-1] == (ENTRANT.label, STEPS, STEPS)
    assert resumed == serial
    ours, theirs = (
        torch.load(place / "model.pt", weights_only=True)
        for place in (folder, tmp_path / "serial" / folder.name)
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert compare(WORK, [ENTRANT], **options, progress=interrupted) == [serial]  # it is done


def test_a_process_that_was_killed_is_named(tmp_path: Path) -> None:
    training = ENTRANT.training(WORK, tmp_path, hooks=[dying], name="AdamW 8bit, seed 0")
    with Trainings(2) as trainings:
        trainings.start([training])
        for _ in range(2):  # the error stays
            with pytest.raises(CommunicationError) as caught:
                trainings.results([training])
    assert str(caught.value) == (
        "the training of 'AdamW 8bit, seed 0' ended with exit code 9, perhaps for lack of memory; "
        "call again to resume it"
    )


@pytest.mark.usefixtures("_sigint")
def test_errors_and_runs_without_a_reader_end_the_process(tmp_path: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    _train(Contender("AdamW 9bit", "9bit").training(WORK, tmp_path), theirs)
    error = ours.recv()
    assert isinstance(error, BadValueError)
    assert str(error).startswith("state_quantizers='9bit' is not a preset")
    assert error.__notes__[0].startswith("in the training of 'AdamW 9bit':\nTraceback")
    _train(ENTRANT.training(WORK, tmp_path, hooks=[failing], name="ours"), theirs)
    error = ours.recv()
    assert isinstance(error, CommunicationError)
    assert str(error) == "the training of 'ours' failed: UnpicklableError: no luck"
    assert "no luck" in error.__notes__[0]
    ours.close()
    _train(ENTRANT.training(WORK, tmp_path), theirs)
    assert (tmp_path / "adamw-8bit-seed0" / "checkpoint.pt").exists()
