"""Figures: frames of `qmaps.analyze` in, matplotlib figures out.

One file per figure, which declares it by `figure`. The imports below give type checkers
the signatures; a figure without an import is found and exported as well.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from matplotlib.figure import Figure

from qmaps.figures._declare import FIGURES, Picture, figure, pictures
from qmaps.figures.bin_changes import bin_changes
from qmaps.figures.bit_fields import bit_fields
from qmaps.figures.code_pairs import code_pairs
from qmaps.figures.convergence_bound import convergence_bound
from qmaps.figures.design import design
from qmaps.figures.error_curves import error_curves
from qmaps.figures.error_per_decade import error_per_decade
from qmaps.figures.first_code_error import first_code_error
from qmaps.figures.histogram import histogram
from qmaps.figures.inverse_sqrt import inverse_sqrt
from qmaps.figures.loss_curves import loss_curves
from qmaps.figures.map_curves import map_curves
from qmaps.figures.outliers import outliers
from qmaps.figures.pareto import pareto
from qmaps.figures.replay import replay
from qmaps.figures.replay_errors import replay_errors
from qmaps.figures.replay_states import replay_states
from qmaps.figures.replay_updates import replay_updates
from qmaps.figures.save import save
from qmaps.figures.sensitivity import sensitivity
from qmaps.figures.speedup import speedup
from qmaps.figures.stability import stability
from qmaps.figures.update_error import update_error
from qmaps.figures.update_histogram import update_histogram
from qmaps.maps._registry import brought, ignored, modules

__all__ = [
    "FIGURES",
    "Picture",
    "bin_changes",
    "bit_fields",
    "code_pairs",
    "convergence_bound",
    "design",
    "error_curves",
    "error_per_decade",
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
    "replay_errors",
    "replay_states",
    "replay_updates",
    "save",
    "sensitivity",
    "speedup",
    "stability",
    "update_error",
    "update_histogram",
]

modules(__name__, list(__path__))
for _name, _found in brought(entry_points(group="qmaps.figures")):
    if _found not in FIGURES.values():
        ignored("qmaps.figures", _name, "it is not a figure declared by qmaps.figures.figure")
_further = {name: drawn for name, drawn in FIGURES.items() if name not in __all__}
globals().update(_further)
__all__ += [*_further]


def __getattr__(name: str) -> Callable[..., Figure]:  # declares further figures to type checkers
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
