"""Starting ranks as processes of their own, once for many checks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
LIMIT_S = 400
"""No rank may hang: the group's timeouts are far below."""


def launch(module: str, world: int, folder: Path, *arguments: str) -> list[dict[str, Any] | None]:
    """Return what each rank of `module` wrote, or None for a rank that was killed.

    A rank is ``python -m MODULE RANK WORLD FOLDER ARGUMENTS`` and writes FOLDER/RANK.json.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(rank), str(world), str(folder), *arguments],
            env=environment,
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    said = []
    try:
        said = [process.communicate(timeout=LIMIT_S)[1] for process in ranks]
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
                process.communicate()
    found: list[dict[str, Any] | None] = []
    for rank, (process, words) in enumerate(zip(ranks, said, strict=True)):
        if process.returncode < 0:
            found.append(None)
            continue
        assert process.returncode == 0, f"rank {rank} failed:\n{words}"
        found.append(json.loads((folder / f"{rank}.json").read_text()))
    return found
