"""Quantization maps and an error-analysis laboratory for optimizer states.

>>> import torch, qmaps
>>> q = qmaps.quantizer("B128/DE@4s")
>>> t = q.quantize(torch.linspace(-1, 1, 256))
>>> t.nbytes
136
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from qmaps.distribution import has_plugins, warn_of_conflict
from qmaps.errors import QmapsError
from qmaps.storage import __version__

if TYPE_CHECKING:
    from qmaps import (
        analyze,
        capture,
        distributed,
        figures,
        lab,
        lpmm,
        maps,
        metrics,
        nn,
        normalize,
        optim,
        sweep,
    )
    from qmaps.algebra.philox import RoundingKey
    from qmaps.algebra.quantizer import QuantizedTensor, Quantizer, quantizer
    from qmaps.algebra.rounding import Rounding
    from qmaps.algebra.saved import load, save
    from qmaps.analyze import replay
    from qmaps.analyze.recommend.run import run as recommend
    from qmaps.capture import Monitor
    from qmaps.maps.codebook import Codebook
    from qmaps.ops import quantiles
    from qmaps.ops.backends import backend, backends
    from qmaps.optim.choice_file import load_choice
    from qmaps.optim.doctor import doctor

# Imported on first use, so that `import qmaps` needs neither torch nor pandas nor matplotlib.
_MODULES = (
    *("analyze", "capture", "distributed", "figures", "lab", "lpmm", "maps", "metrics", "nn"),
    *("normalize", "optim", "sweep"),
)
_LAZY = {name: f"qmaps.{name}" for name in _MODULES} | {
    "Codebook": "qmaps.maps.codebook:Codebook",
    "Monitor": "qmaps.capture:Monitor",
    "QuantizedTensor": "qmaps.algebra.quantizer:QuantizedTensor",
    "Quantizer": "qmaps.algebra.quantizer:Quantizer",
    "Rounding": "qmaps.algebra.rounding:Rounding",
    "RoundingKey": "qmaps.algebra.philox:RoundingKey",
    "backend": "qmaps.ops.backends:backend",
    "backends": "qmaps.ops.backends:backends",
    "doctor": "qmaps.optim.doctor:doctor",
    "load": "qmaps.algebra.saved:load",
    "load_choice": "qmaps.optim.choice_file:load_choice",
    "quantiles": "qmaps.ops.quantiles",
    "quantizer": "qmaps.algebra.quantizer:quantizer",
    "recommend": "qmaps.analyze.recommend:run",
    "replay": "qmaps.analyze.replay",
    "save": "qmaps.algebra.saved:save",
}
"""Module, or ``module:member``, behind each name that is imported on first use."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'qmaps' has no attribute {name!r}")
    module, _, member = _LAZY[name].partition(":")
    imported = importlib.import_module(module)
    value = getattr(imported, member) if member else imported
    globals()[name] = value  # so that the next use costs nothing
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])


__all__ = [
    "Codebook",
    "Monitor",
    "QmapsError",
    "QuantizedTensor",
    "Quantizer",
    "Rounding",
    "RoundingKey",
    "__version__",
    "analyze",
    "backend",
    "backends",
    "capture",
    "distributed",
    "doctor",
    "figures",
    "lab",
    "load",
    "load_choice",
    "lpmm",
    "maps",
    "metrics",
    "nn",
    "normalize",
    "optim",
    "quantiles",
    "quantizer",
    "recommend",
    "replay",
    "save",
    "sweep",
]

warn_of_conflict()
if has_plugins():
    importlib.import_module("qmaps.algebra.plugins").load()
if monitor_settings := os.environ.get("QMAPS_MONITOR"):
    importlib.import_module("qmaps.capture.monitor").switch_on(monitor_settings)
