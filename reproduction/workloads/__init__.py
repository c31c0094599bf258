"""Workloads of the papers' pages and of benchmarks, in addition to those of the laboratory.

>>> get("docstring-lm").steps
200
"""

from __future__ import annotations

from typing import Any

from qmaps.lab import workloads
from qmaps.lab.workloads import Workload
from reproduction.workloads.docstring_lm import DocstringLM
from reproduction.workloads.minilm import MiniLM

OWN: dict[str, type[Workload]] = {work.name: work for work in (DocstringLM, MiniLM)}
"""Workloads outside the laboratory."""


def names() -> list[str]:
    """Names of all workloads, those of the laboratory included."""
    return sorted([*workloads.names(), *OWN])


def get(name: str, **options: Any) -> Workload:
    """The workload of this name.

    Args:
        name: one of `names`.
        **options: fields of the workload with other values than their defaults.

    Raises:
        BadValueError: there is no such workload.
    """
    return OWN[name](**options) if name in OWN else workloads.get(name, **options)
