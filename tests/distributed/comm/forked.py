"""Ranks that are forks of one process: what they import is imported once."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

import torch._dynamo  # noqa: F401 - DistributedDataParallel imports it in each rank otherwise


def start(module: str, world: int, folder: Path, *arguments: str) -> None:
    """Call ``main`` of `module` in each rank, with its own ``sys.argv``; write exit codes."""
    main = importlib.import_module(module).main
    children = []
    for rank in range(world):
        if (child := os.fork()) == 0:
            words = os.open(folder / f"{rank}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(words, 2)
            sys.argv = [module, str(rank), str(world), str(folder), *arguments]
            main()
            return  # and end like any process
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    (folder / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    start(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
