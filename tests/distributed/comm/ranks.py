"""The setup and result file of every rank's checks."""

from __future__ import annotations

import datetime
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist


def begin(rank: int, world: int, folder: Path, timeout_s: float = 60) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=(folder / "store").resolve().as_uri(),
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=timeout_s),
    )


def run(checks: Mapping[str, Callable[[], None]]) -> None:
    """Run the checks named on the command line, in that order, and write their results."""
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    begin(rank, world, folder)
    results = {}
    for name, check in ((name, checks[name]) for name in sys.argv[4:]):
        try:
            check()
            results[name] = "passed"
        except Exception:
            results[name] = traceback.format_exc()
        print(rank, name, results[name], file=sys.stderr, flush=True)  # shown if a launch fails
        dist.barrier()  # a failed rank must not leave others in the middle of a check
    (folder / f"{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()
