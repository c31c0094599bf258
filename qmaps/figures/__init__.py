"""Figures: frames of `qmaps.analyze` in, matplotlib figures out.

One file per figure, which declares it by `figure`. The imports below give type checkers
the signatures; a figure without an import is found and exported as well.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from matplotlib.figure import Figure

from qmaps.figures._declare import FIGURES, Picture, figure, pictures, save
from qmaps.figures.code_pairs import code_pairs
from qmaps.figures.first_code_error import first_code_error
from qmaps.figures.histogram import histogram
from qmaps.figures.inverse_sqrt import inverse_sqrt
from qmaps.figures.loss_curves import loss_curves
from qmaps.figures.map_curves import map_curves
from qmaps.figures.outliers import outliers
from qmaps.figures.pareto import pareto
from qmaps.figures.replay import replay
from qmaps.figures.update_error import update_error
from qmaps.maps._registry import ignored, load_entry_points, modules

__all__ = [
    "FIGURES",
    "Picture",
    "code_pairs",
    "figure",
    "first_code_error",
    "histogram",
    "inverse_sqrt",
    "loss_curves",
    "map_curves",
    "outliers",
    "pareto",
    "pictures",
    "replay",
    "save",
    "update_error",
]

modules(__name__, list(__path__))
for _name, _found in load_entry_points(entry_points(group="qmaps.figures")):
    if _found not in FIGURES.values():
        ignored("qmaps.figures", _name, "it is not a figure declared by qmaps.figures.figure")
_further = {name: drawn for name, drawn in FIGURES.items() if name not in __all__}
globals().update(_further)
__all__ += [*_further]


def __getattr__(name: str) -> Callable[..., Figure]:  # declares further figures to type checkers
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
