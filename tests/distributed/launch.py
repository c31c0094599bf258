"""Starting real processes that train together, and ending them all if one fails or hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]


def launch(ranks: int, folder: Path, *names: str, seconds: float = 200) -> list[str]:
    """Run checks of ``tests.distributed.worker`` in so many processes; returns their outputs.

    Args:
        ranks: number of processes.
        folder: for the store by which they find each other, their outputs and their files.
        *names: of the checks.
        seconds: until all are killed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "tests.distributed.worker", str(folder), str(ranks), *names]
    # A session of their own, so that all of them can be killed.
    parent = subprocess.Popen(
        command,
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = parent.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        said = f"killed after {seconds} seconds"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
    outputs = [folder / f"{rank}.txt" for rank in range(ranks)]
    texts = [output.read_text() if output.exists() else "" for output in outputs]
    shown = "\n".join(f"--- rank {rank}\n{text}" for rank, text in enumerate(texts))
    assert parent.returncode == 0, f"{said}\n{shown}"
    return texts
