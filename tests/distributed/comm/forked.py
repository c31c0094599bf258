"""Ranks as forks of one process, so imports happen once."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

import torch._dynamo  # noqa: F401 - DistributedDataParallel imports it in each rank otherwise


def start(folder: Path, *groups: tuple[str, int, list[str]]) -> None:
    """Call ``main`` of each group's module in its ranks, with ``sys.argv``; write exit codes."""
    mains = [importlib.import_module(module).main for module, _, _ in groups]
    for number, (module, world, arguments) in enumerate(groups):
        place, children = folder / str(number), []
        place.mkdir()
        for rank in range(world):
            if (child := os.fork()) == 0:
                words = os.open(place / f"{rank}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(words, 2)
                sys.argv = [module, str(rank), str(world), str(place), *arguments]
                mains[number]()
                return  # and end like any process
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        (place / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    start(Path(sys.argv[1]), *json.loads(sys.argv[2]))
