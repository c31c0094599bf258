"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Callable, Collection, Sequence
from hashlib import sha256
from itertools import combinations
from pathlib import Path

import pytest

# Of two workers with two threads each on two cores, those that wait would spin in the way of those
# that work. Read once, when torch loads OpenMP; processes that tests start inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from filelock import FileLock
from hypothesis import settings

# Triton's kernels run in its interpreter if this is set before Triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The same examples every time, so that no change fails by chance; `make fuzz` draws others.
settings.register_profile("repeatable", derandomize=True)
if "QMAPS_FUZZ" not in os.environ:
    settings.load_profile("repeatable")

MARKED = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.slow\b", re.MULTILINE)
"""Beginning of the marks of a file for `make test-all` alone."""
GRID = 12
"""Largest number of cases of one test for `make test` to run without a choice among them."""


@pytest.fixture(scope="session")
def made_once(
    tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Callable[[str, Callable[[Path], None]], Path]:
    """Make a folder with this name by a function, once for all processes of a test run."""
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent

    def once(name: str, make: Callable[[Path], None]) -> Path:
        folder = shared / f"made-{name}"
        with FileLock(shared / f"made-{name}.lock"):
            if not folder.exists():
                unfinished = shared / f"unfinished-{name}-{worker_id}"
                unfinished.mkdir()
                make(unfinished)
                unfinished.rename(folder)
        return folder

    return once


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files of slow tests with ``-m "not slow"``."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return True if MARKED.search(collection_path.read_text("utf-8")) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark more tests as slow: further instruction sets, two threads, most of each grid.

    Of a grid of three axes or more the rest is also marked as products beyond every pair.
    """
    from qmaps.engines import native  # only now: tests/engines/native may put another build first

    other_isas = native.isas()[1:]  # the best comes first
    grids: dict[tuple[Path, str], list[pytest.Function]] = {}
    for item in items:
        if hasattr(item, "callspec") and item.get_closest_marker("gpu") is None:
            grids.setdefault((item.path, item.originalname), []).append(item)
    for cases in grids.values():
        marked = [_names(mark) for mark in cases[0].iter_markers("parametrize")]
        marked_names = {name for names in marked for name in names}
        axes = [*marked, *([name] for name in cases[0].callspec.params if name not in marked_names)]
        quick = [item for item in cases if item.get_closest_marker("slow") is None]
        params = [(item, item.callspec.params) for item in quick]
        fast = _covering(
            [i for i, p in params if p.get("isa") not in other_isas and p.get("threads") != 2],
            marked,
        )
        chosen = _covering(cases, axes, fast) if len(axes) > 2 else set(cases)
        for item in set(cases) - fast:
            item.add_marker(pytest.mark.slow)
            if item not in chosen:
                item.add_marker(pytest.mark.product)


def _covering(
    cases: list[pytest.Function],
    axes: list[Sequence[str]],
    before: Collection[pytest.Function] = (),
) -> set[pytest.Function]:
    """A few cases of a test with every value of two axes, or every pair of values of more.

    Args:
        cases: of one test.
        axes: names of parameters, grouped if one parametrize sets them.
        before: chosen cases.
    """
    size = min(2, len(axes) - 1)
    if len(cases) <= GRID or size < 1:
        return set(cases)
    parts = {}
    for item in cases:
        params = item.callspec.params
        row = [tuple(id(params[name]) for name in names) for names in axes]
        parts[item] = set(combinations(enumerate(row), size))
    missing, covering = set().union(*parts.values()), set(before)
    missing.difference_update(*(parts[item] for item in before))
    # Not in the order of the grid, which would combine the first values with all others.
    for item in sorted(cases, key=lambda item: sha256(item.nodeid.encode()).digest()):
        if not missing.isdisjoint(parts[item]):
            missing -= parts[item]
            covering.add(item)
    return covering


def _names(mark: pytest.Mark) -> Sequence[str]:
    """Names set by a parametrize decorator."""
    names = mark.args[0]
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else names


def pytest_collection_finish() -> None:
    """Exclude modules and tests from garbage collection; they live to the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _one_thread_a_worker() -> None:
    """Use one thread per worker; workers share the cores."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> None:
    """Make Ctrl-C a KeyboardInterrupt, even in a process started in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
