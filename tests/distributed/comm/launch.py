"""Starting ranks as processes of their own, once for many checks."""

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


def launch(module: str, world: int, folder: Path, *arguments: str) -> list[dict[str, Any] | None]:
    """Return what each rank of `module` wrote, or None for a rank that was killed.

    A rank is a fork in which ``main`` of `module` finds RANK WORLD FOLDER ARGUMENTS in ``sys.argv``
    and writes FOLDER/RANK.json.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    # A session of their own, so that all of them can be killed.
    script = "tests.distributed.comm.forked"
    parent = subprocess.Popen(
        [sys.executable, "-m", script, module, str(world), str(folder), *arguments],
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
    found: list[dict[str, Any] | None] = []
    for rank, code in enumerate(json.loads((folder / "codes.json").read_text())):
        if code < 0:
            found.append(None)
            continue
        assert code == 0, f"rank {rank} failed:\n{(folder / f'{rank}.err').read_text()}"
        found.append(json.loads((folder / f"{rank}.json").read_text()))
    return found
