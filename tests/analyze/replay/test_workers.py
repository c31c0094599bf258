"""Replays by several processes: the bits of one process with one thread."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pandas as pd
import pytest
import torch

import qmaps
from qmaps import capture
from qmaps.analyze import executors
from qmaps.errors import BadValueError, CommunicationError
from tests.helpers import Pickling
from tests.sweep.data import on_disk, same, tensors

pytestmark = pytest.mark.slow

PAIRS = ["B128/DE@4s+sr + rank1/linear@4u", "tensor/DE@8s + 32-bit", "B128/lloyd@4s + B64/DE-0@4u"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return on_disk(tmp_path_factory.mktemp("replay"))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def serial(path: Path, one_thread: None) -> pd.DataFrame:
    return qmaps.replay.run(path, PAIRS, steps=8, seed=5)


def test_a_pool_and_an_executor_give_the_same_bits(path: Path, serial: pd.DataFrame) -> None:
    calls: list[tuple[int, int, str]] = []
    frame = qmaps.replay.run(
        path, PAIRS, steps=8, seed=5, workers=1, progress=lambda *arguments: calls.append(arguments)
    )
    same(frame, serial)
    assert set(serial["parameter"]) == {"a", "b", "c", "e"}
    assert [done for done, _, _ in calls] == [0, 1, 2, 3, 4, 4]
    assert calls[0] == (0, 4, "4 jobs on workers")
    with Pickling(2) as executor:
        same(qmaps.replay.run(path, PAIRS, steps=8, seed=5, executor=executor), serial)


def test_a_choice_of_parameters_keeps_its_random_numbers(path: Path, serial: pd.DataFrame) -> None:
    with ThreadPoolExecutor(1) as executor:
        frame = qmaps.replay.run(path, PAIRS, steps=8, seed=5, parameters=["c"], executor=executor)
    same(frame, serial[serial["parameter"] == "c"].reset_index(drop=True))


def test_recommendations_are_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "new_pool", Pickling)
    alone = qmaps.recommend(path, steps=4)
    shared = qmaps.recommend(path, steps=4, workers=2)
    same(shared.tensors, alone.tensors)
    same(shared.pairs, alone.pairs)
    assert shared.summary() == alone.summary()


def test_states_in_memory_and_broken_executors_are_refused(path: Path) -> None:
    with pytest.raises(BadValueError) as caught:
        qmaps.replay.run(capture.CapturedStates.from_tensors(tensors()), PAIRS, workers=2)
    assert str(caught.value) == (
        "states in memory cannot be read by workers; give the path of captured states or of a "
        "checkpoint"
    )

    class Broken(ThreadPoolExecutor):
        def submit(self, *arguments: object, **named: object):  # type: ignore[no-untyped-def]
            raise BrokenProcessPool

    executor: Executor = Broken()
    with pytest.raises(CommunicationError) as lost:
        qmaps.replay.run(path, PAIRS, executor=executor)
    assert str(lost.value) == (
        "executor=Broken has lost a worker, perhaps for lack of memory; call again with a new "
        "executor"
    )


def test_one_process_uses_one_thread(path: Path, serial: pd.DataFrame) -> None:
    threads: list[int] = []
    torch.set_num_threads(2)  # the fixture of each test sets one again
    frame = qmaps.replay.run(
        path, PAIRS, steps=8, seed=5, progress=lambda *_: threads.append(torch.get_num_threads())
    )
    assert set(threads) == {1}
    assert torch.get_num_threads() == 2
    same(frame, serial)
