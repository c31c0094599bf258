"""Sweeps by several processes: the same bits for any workers, also after a kill."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from qmaps import capture, sweep
from qmaps.analyze import executors
from qmaps.errors import BadTypeError, BadValueError, CaptureError, CommunicationError
from qmaps.sweep.plan import Item
from tests.sweep.data import SPECS, Deadly, on_disk, plan, same, tensors

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return on_disk(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(scope="module")
def serial(path: Path) -> pd.DataFrame:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        return sweep.run(path, SPECS)
    finally:
        torch.set_num_threads(threads)


def test_a_pool_gives_the_same_bits(path: Path, serial: pd.DataFrame, tmp_path: Path) -> None:
    calls: list[tuple[int, int, str]] = []
    frame = sweep.run(
        path, SPECS, workers=2, out=tmp_path, progress=lambda *arguments: calls.append(arguments)
    )
    same(frame, serial)
    same(pd.read_parquet(tmp_path / "sweep.parquet"), serial)
    assert calls[0] == (0, 5, "5 jobs on workers")
    assert calls[-1] == (5, 5, "")
    assert [done for done, _, _ in calls] == [0, 1, 2, 3, 4, 5, 5]


def test_states_that_were_renamed(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "optimizer.pt"
    model = torch.nn.Linear(90, 60)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 90)).square().sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), file)
    states = capture.load(file, names=["mine.weight", "mine.bias"])
    expected = sweep.run(states, SPECS[:2])
    assert set(expected["parameter"]) == {"mine.weight"}
    with ThreadPoolExecutor(2) as executor:
        same(sweep.run(states, SPECS[:2], executor=executor), expected)


def test_one_frame_for_any_workers(path: Path, serial: pd.DataFrame) -> None:
    """One process and Dask; other tests have pools, and a killed worker."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        same(sweep.run(path, SPECS, executor=client.get_executor()), serial)


def job_of(item: Item) -> executors.Job:
    return executors.Job(item.number, item.parameter, item.work, item.measure)


def deadly(path: Path, place: Path, lives: int) -> list[Item]:
    """The items of a sweep; the last one kills its worker."""
    items = plan(path, SPECS)
    last = {name: getattr(items[-1], name) for name in asdict(items[-1])}
    return [*items[:-1], Deadly(**last, place=str(place), lives=lives)]


def test_a_worker_that_is_killed(path: Path, tmp_path: Path) -> None:
    items = deadly(path, tmp_path / "died", 99)
    with pytest.raises(CommunicationError) as caught:
        list(executors.in_pool([job_of(items[-1])], 2, capture.load(path)))
    assert str(caught.value) == (
        "workers=2: a worker was killed, perhaps for lack of memory; call again with fewer workers"
    )
    assert (tmp_path / "died").read_text() == "x"


KILLED = """
import os, signal, sys
from qmaps import sweep

def stop(done, total, note):
    if done == 2:
        os.kill(os.getpid(), signal.SIGKILL)

sweep.run(sys.argv[1], sys.argv[3:], out=sys.argv[2], progress=stop)
"""


def test_a_killed_sweep_goes_on(path: Path, serial: pd.DataFrame, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(path), str(tmp_path), *SPECS]
    done = subprocess.run(command, check=False)
    assert done.returncode == -signal.SIGKILL
    stamps = {part: part.stat().st_mtime_ns for part in (tmp_path / "parts").iterdir()}
    assert sorted(part.name for part in stamps) == ["00000.parquet", "00001.parquet"]
    same(sweep.run(path, SPECS, out=tmp_path, workers=1), serial)
    assert all(part.stat().st_mtime_ns == stamp for part, stamp in stamps.items())


ALONE = """
import os, signal
from qmaps.analyze.executors import new_pool

if __name__ == "__main__":
    print(new_pool(1).submit(os.getpid).result(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_with_the_main_process(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(ALONE)
    # The worker has the pipe of the output, too: a read ends when both have ended.
    done = subprocess.run(
        [sys.executable, str(tmp_path / "alone.py")],
        check=False, stdout=subprocess.PIPE, timeout=60,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    assert int(done.stdout) > 0


def test_an_executor_that_lost_its_workers(path: Path) -> None:
    class Broken(ThreadPoolExecutor):
        def submit(self, function: Callable, /, *arguments: object, **named: object):  # type: ignore[no-untyped-def]
            raise BrokenProcessPool

    with Broken() as executor, pytest.raises(CommunicationError) as caught:
        sweep.run(path, SPECS, executor=executor)
    assert str(caught.value) == (
        "executor=Broken has lost a worker, perhaps for lack of memory; call again with a new "
        "executor"
    )


def test_impossible_work_for_workers_is_refused(path: Path) -> None:
    cases = {
        "states in memory cannot be read by workers; give the path of captured states or of a "
        "checkpoint": (tensors(), {"workers": 2}),
        "workers=0 must be at least 1": (path, {"workers": 0}),
        "workers=2 cannot be combined with an executor, which has workers of its own": (
            path,
            {"workers": 2, "executor": ThreadPoolExecutor(1)},
        ),
    }
    for message, (states, options) in cases.items():
        with pytest.raises(BadValueError) as caught:
            sweep.run(states, SPECS, **options)
        assert str(caught.value) == message


UNGUARDED = """
import sys
from qmaps import sweep
from qmaps.errors import CommunicationError

try:
    sweep.run(sys.argv[1], sys.argv[2], workers=1)
except CommunicationError as error:
    print(error)
"""


def test_a_script_without_a_guard(path: Path, tmp_path: Path) -> None:
    (tmp_path / "unguarded.py").write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "unguarded.py"), str(path), SPECS[0]],
        check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.stdout == (
        "workers=1: no worker process could start; a script that passes workers must do so under "
        'if __name__ == "__main__":\n'
    )


def test_bad_executors_and_numbers_of_workers_are_refused(path: Path) -> None:
    closed = ThreadPoolExecutor(1)
    closed.shutdown()
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"executor": 3}, BadTypeError, "executor=3 must be a concurrent.futures.Executor or None"),
        ({"workers": 1.5}, BadTypeError, "workers=1.5 must be an int or None"),
        ({"workers": True}, BadTypeError, "workers=True must be an int or None"),
        ({"executor": closed}, BadValueError, "executor=ThreadPoolExecutor accepts no work "
         "(cannot schedule new futures after shutdown)"),
    ]  # fmt: skip
    for options, error, message in cases:
        with pytest.raises(error) as caught:
            sweep.run(path, SPECS, **options)
        assert str(caught.value) == message


def test_a_daemonic_process_starts_no_workers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    with pytest.raises(BadValueError) as caught:
        sweep.run(path, SPECS, workers=2)
    assert str(caught.value) == (
        "workers=2 cannot be started by a daemonic process, such as a worker of "
        "multiprocessing.Pool or of a DataLoader; use workers=None there"
    )


def test_threads_of_an_executor_leave_the_number_of_torch_threads(path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(3) as executor, ThreadPoolExecutor(1) as new:
            sweep.run(path, SPECS, executor=executor)
            assert new.submit(torch.get_num_threads).result() == 2
            counts = {executor.submit(torch.get_num_threads) for _ in range(20)}
            assert {count.result() for count in counts} == {2}
    finally:
        torch.set_num_threads(threads)


def test_an_error_in_a_worker_is_that_of_one_process(tmp_path: Path) -> None:
    bad = tensors()
    bad["c"]["exp_avg"][3, 7] = float("nan")
    from qmaps.capture.recorder import write

    path = write(capture.CapturedStates.from_tensors(bad), tmp_path / "bad")
    messages = []
    for workers in (None, 1):
        with pytest.raises(CaptureError) as caught:
            sweep.run(path, SPECS, workers=workers)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "'exp_avg' of parameter 'c'" in messages[0]


def test_a_worker_has_one_thread_and_others_keep_theirs(path: Path) -> None:
    thread_counts = []

    class Looking(Item):
        def measure(self, states: capture.CapturedStates) -> pd.DataFrame:
            thread_counts.append(torch.get_num_threads())
            return super().measure(states)

    [item, *_] = plan(path, SPECS)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        looking = Looking(**{name: getattr(item, name) for name in asdict(item)})
        executors._measured(job_of(looking), (str(path), capture.load(path).parameters()))
        assert (thread_counts, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(threads)


def test_jobs_of_a_broken_executor_are_cancelled() -> None:
    """Otherwise the remaining workers would run them after the error."""
    futures: list[Future[int]] = []

    class Losing(Executor):
        def submit(self, *_: Any) -> Future[int]:  # type: ignore[override]
            futures.append(Future())
            if len(futures) == 2:
                futures[0].set_exception(BrokenProcessPool())
            return futures[-1]

    jobs = [executors.Job(number, "", 1, lambda _: 0) for number in range(2)]
    with pytest.raises(CommunicationError, match="executor=Losing has lost a worker"):
        list(executors.on_executor(jobs, Losing(), capture.CapturedStates.from_tensors({})))
    assert futures[1].cancelled()
