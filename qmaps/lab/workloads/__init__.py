"""Training on real data without a download.

A workload is a frozen dataclass in a module of its own; `REGISTRY` finds it by its name.

>>> work = get("stdlib-lm-tiny")
>>> work.steps, work.batch(step=1, seed=0)[0].shape
(100, torch.Size([8, 64]))
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from qmaps.errors import BadValueError, nearest
from qmaps.lab.workloads.base import REGISTRY, Workload
from qmaps.lab.workloads.run_folder import TrainingRun
from qmaps.lab.workloads.training import train
from qmaps.registry import modules

modules(__name__, list(__path__))


def names() -> list[str]:
    """Names of all workloads."""
    return sorted(REGISTRY)


def get(name: str, **options: Any) -> Workload:
    """Return the workload of a name.

    Args:
        name: one of `names`.
        **options: values of the workload's fields, such as ``stable_embedding=True``.

    Raises:
        BadValueError: there is no such workload, or it has no such option.
    """
    if name not in REGISTRY:
        raise BadValueError(
            f"workload={name!r} is unknown; allowed are {', '.join(names())}"
            f"{nearest(name, names())}"
        )
    work = REGISTRY[name]()
    allowed = [field.name for field in fields(work)]
    for option in options:
        if option not in allowed:
            raise BadValueError(
                f"{option} is not an option of {name}; allowed are "
                f"{', '.join(allowed)}{nearest(option, allowed)}"
            )
    return replace(work, **options)


__all__ = ["REGISTRY", "TrainingRun", "Workload", "get", "names", "train"]
