"""Start processes for one training, and end all of them if one fails or hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]


def launch(folder: Path, *groups: tuple[int, tuple[str, ...]], seconds: float = 400) -> None:
    """Run checks of ``tests.distributed.checks`` in one group of processes after the other.

    Args:
        folder: for the stores of the groups, their outputs and their files.
        *groups: the number of processes, or 0 for one without a group, and their checks.
        seconds: until all are killed.
    """
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    arguments = [f"{ranks}:{','.join(names)}" for ranks, names in groups]
    # Their own session, so all of them can be killed.
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.distributed.worker", str(folder), *arguments],
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
    outputs = sorted(folder.glob("group*.txt"))
    shown = "\n".join(f"--- {output.stem}\n{output.read_text()}" for output in outputs)
    assert parent.returncode == 0, f"{said}\n{shown}"
