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

from qmaps import maps, metrics, normalize
from qmaps.algebra import plugins
from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import QuantizedTensor, Quantizer, quantizer
from qmaps.algebra.rounding import Rounding
from qmaps.algebra.saved import load, save
from qmaps.errors import QmapsError
from qmaps.maps.codebook import Codebook
from qmaps.ops import quantiles
from qmaps.ops.backends import backend, backends
from qmaps.storage import __version__

if TYPE_CHECKING:
    from qmaps import analyze, capture, distributed, figures, lab, lpmm, nn, optim, sweep
    from qmaps.analyze import replay
    from qmaps.analyze.recommend.run import run as recommend
    from qmaps.capture import Monitor
    from qmaps.optim.choice_file import load_choice
    from qmaps.optim.doctor import doctor

# Imported on first use, so that `import qmaps` needs neither pandas nor matplotlib.
_LAZY = (
    "analyze",
    "capture",
    "distributed",
    "figures",
    "lab",
    "lpmm",
    "nn",
    "optim",
    "replay",
    "sweep",
)
_WITHIN = {"replay": "analyze.replay"}
"""Where those are that are no entry of the package's own."""
_NAMES = {
    "Monitor": ("qmaps.capture", "Monitor"),
    "doctor": ("qmaps.optim.doctor", "doctor"),
    "load_choice": ("qmaps.optim.choice_file", "load_choice"),
    "recommend": ("qmaps.analyze.recommend", "run"),
}
"""Where classes and functions are that are imported on first use."""

plugins.load()


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        module, own = _NAMES[name]
        return getattr(importlib.import_module(module), own)
    if name in _LAZY:
        return importlib.import_module(f"qmaps.{_WITHIN.get(name, name)}")
    raise AttributeError(f"module 'qmaps' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY, *_NAMES])


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

if monitor_settings := os.environ.get("QMAPS_MONITOR"):
    importlib.import_module("qmaps.capture.monitor").switch_on(monitor_settings)
