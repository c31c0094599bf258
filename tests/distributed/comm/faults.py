"""A signal ends one rank in the middle of training; see test_ranks.py."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from qmaps.distributed import comm
from qmaps.errors import CommunicationError
from tests.distributed.comm import ranks

TIMEOUT_S = 15


def main() -> None:
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    ranks.begin(rank, world, folder, TIMEOUT_S)
    model = DistributedDataParallel(nn.Linear(20, 20))
    model.register_comm_hook(None, comm.quantized_hook("B64/tree@8s"))
    start, said, step = time.monotonic(), "", 0
    try:
        for step in range(5):
            if rank == world - 1 and step == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            start = time.monotonic()
            model(torch.ones(4, 20)).sum().backward()
    except CommunicationError as error:
        said = str(error)
    results = {"step": step, "seconds": time.monotonic() - start, "said": said}
    (folder / f"{rank}.json").write_text(json.dumps(results))
    os._exit(0)  # the rest of the group cannot be shut down in order
