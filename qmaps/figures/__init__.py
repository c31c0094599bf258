"""Figures: frames of `qmaps.analyze` in, matplotlib figures out.

One file per figure, which declares it by `figure`. The imports below give type checkers
the signatures; a figure without an import is found and exported as well.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from matplotlib.figure import Figure

from qmaps.figures.code_pairs import code_pairs as code_pairs
from qmaps.figures.declare import FIGURES, Picture, figure, pictures, save
from qmaps.figures.first_code_error import first_code_error as first_code_error
from qmaps.figures.histogram import histogram as histogram
from qmaps.figures.inverse_sqrt import inverse_sqrt as inverse_sqrt
from qmaps.figures.loss_curves import loss_curves as loss_curves
from qmaps.figures.map_curves import map_curves as map_curves
from qmaps.figures.monitor import monitor as monitor
from qmaps.figures.outliers import outliers as outliers
from qmaps.figures.pareto import pareto as pareto
from qmaps.figures.replay import replay as replay
from qmaps.figures.update_error import update_error as update_error
from qmaps.registry import ignored, load_entry_points, modules

modules(__name__, list(__path__))
for _name, _found in load_entry_points(entry_points(group="qmaps.figures")):
    if _found not in FIGURES.values():
        ignored("qmaps.figures", _name, "it is not a figure declared by qmaps.figures.figure")
__all__ = ["FIGURES", "Picture", "figure", "pictures", "save"]
_drawing = {name: draw for name, draw in FIGURES.items() if name not in __all__}
globals().update(_drawing)
__all__ += _drawing


def __getattr__(name: str) -> Callable[..., Figure]:  # declares further figures to type checkers
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
