"""Training on real data that needs no download.

A workload is a frozen dataclass in a module of its own; `REGISTRY` finds it by its name.

>>> work = get("stdlib-lm-tiny")
>>> work.steps, work.batch(step=1, seed=0)[0].shape
(100, torch.Size([8, 64]))
"""

from __future__ import annotations

from qmaps._discover import modules
from qmaps.errors import BadValueError, nearest
from qmaps.workloads.base import REGISTRY, Workload
from qmaps.workloads.run_folder import TrainingRun
from qmaps.workloads.training import train

modules(__name__, list(__path__))


def names() -> list[str]:
    """Names of all workloads."""
    return sorted(REGISTRY)


def get(name: str) -> Workload:
    """The workload of that name, with its default options.

    Raises:
        BadValueError: there is none.
    """
    if name not in REGISTRY:
        raise BadValueError(
            f"workload={name!r} is unknown; allowed are {', '.join(names())}"
            f"{nearest(name, names())}"
        )
    return REGISTRY[name]()


__all__ = ["REGISTRY", "TrainingRun", "Workload", "get", "names", "train"]
