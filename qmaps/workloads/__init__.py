"""Training on real data that needs no download."""

from __future__ import annotations

from qmaps._discover import modules
from qmaps.errors import BadValueError, nearest
from qmaps.workloads.base import REGISTRY, Workload
from qmaps.workloads.training import Training, train

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


__all__ = ["REGISTRY", "Training", "Workload", "get", "names", "train"]
