"""All checks, run by every rank: ``python -m tests.comm.checks RANK WORLD FOLDER NAMES``."""

from __future__ import annotations

from tests.comm import data_parallel, model_parallel, ranks

CHECKS = data_parallel.CHECKS | model_parallel.CHECKS

if __name__ == "__main__":
    ranks.run(CHECKS)
