"""Starting ranks as processes of their own, all groups from one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
LIMIT_S = 400
"""No rank may hang: the group's timeouts are far below."""


def launch(
    folder: Path, *groups: tuple[str, int, tuple[str, ...]]
) -> list[list[dict[str, Any] | None]]:
    """Return the result of each rank of each group, or None for a killed rank.

       A rank is a fork; ``main`` of a module finds RANK WORLD FOLDER ARGUMENTS in ``sys.argv`` and
    writes FOLDER/RANK.json.

       Args:
           folder: has a folder for each group.
           *groups: a module, the number of ranks and the arguments; one group runs after the other.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    # Their own session, so all of them can be killed.
    script = "tests.distributed.comm.forked"
    parent = subprocess.Popen(
        [sys.executable, "-m", script, str(folder), json.dumps(groups)],
        env=environment,
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said = parent.communicate(timeout=LIMIT_S)[1]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
    assert parent.returncode == 0, said
    return [_written(folder / str(number)) for number in range(len(groups))]


def _written(folder: Path) -> list[dict[str, Any] | None]:
    results: list[dict[str, Any] | None] = []
    for rank, code in enumerate(json.loads((folder / "codes.json").read_text())):
        if code < 0:
            results.append(None)
            continue
        assert code == 0, f"rank {rank} failed:\n{(folder / f'{rank}.err').read_text()}"
        results.append(json.loads((folder / f"{rank}.json").read_text()))
    return results
