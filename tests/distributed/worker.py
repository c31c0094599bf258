"""Processes for the checks of ``tests.distributed.checks``, many in one launch."""

from __future__ import annotations

import datetime
import os
import sys
import time
import traceback
from pathlib import Path

import torch
import torch._dynamo  # by DistributedDataParallel otherwise, in each rank
import torch.distributed as dist

from tests.distributed.checks import blocks, checkpoints, matrices, monitors, placements, replicas
from tests.distributed.checks.common import here

CHECKS = {
    name.removeprefix("check_"): check
    for module in (blocks, checkpoints, matrices, monitors, placements, replicas)
    for name, check in vars(module).items()
    if name.startswith("check_")
}
"""Every check by its name: real gloo collectives."""


def run(rank: int, group: int, names: list[str]) -> int:
    here.rank = rank
    torch.set_num_threads(1)
    if here.world:
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(str(here.folder / f"store{group}"), here.world),
            rank=here.rank,
            world_size=here.world,
            timeout=datetime.timedelta(seconds=40),
        )
    for name in names:
        begin = time.perf_counter()
        try:
            CHECKS[name]()
        except BaseException:
            traceback.print_exc()
            print("failed", name, flush=True)
            return 1
        print(f"passed {name} {time.perf_counter() - begin:.1f} s", flush=True)
    if here.world:
        dist.barrier()
        dist.destroy_process_group()
    return 0


def start(folder: str, *groups: str) -> int:
    """Fork the processes of each group, so imports happen once."""
    here.folder = Path(folder)
    for group, text in enumerate(groups):
        ranks, _, names = text.partition(":")
        here.world = int(ranks)
        for rank in range(max(here.world, 1)):
            if os.fork() == 0:
                path = here.folder / f"group{group}-rank{rank}.txt"
                output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(output, 1)
                os.dup2(output, 2)
                os._exit(run(rank, group, names.split(",")))
        for _ in range(max(here.world, 1)):
            _, status = os.wait()
            if status:
                time.sleep(1)  # the others may say more
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(start(*sys.argv[1:]))
