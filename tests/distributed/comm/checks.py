"""All checks, by ``python -m tests.distributed.comm.checks RANK WORLD FOLDER NAMES``."""

from __future__ import annotations

from tests.distributed.comm import data_parallel, model_parallel, ranks

CHECKS = data_parallel.CHECKS | model_parallel.CHECKS


def main() -> None:
    ranks.run(CHECKS)
