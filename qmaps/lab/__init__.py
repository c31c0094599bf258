"""The laboratory: from a training run to the papers' figures and back into an optimizer."""

from typing import TYPE_CHECKING

from qmaps.registry import lazy

if TYPE_CHECKING:
    from qmaps.lab.compare import Contender, compare, loss_frame, summarize_losses
    from qmaps.lab.frames import analyze_states
    from qmaps.lab.pictures import draw
    from qmaps.lab.pipeline import run, run_checkpoint

__all__ = [
    "Contender",
    "analyze_states",
    "compare",
    "draw",
    "loss_frame",
    "run",
    "run_checkpoint",
    "summarize_losses",
]

lazy(
    __name__,
    {
        "compare": ("Contender", "compare", "loss_frame", "summarize_losses"),
        "frames": ("analyze_states",),
        "pictures": ("draw",),
        "pipeline": ("run", "run_checkpoint"),
    },
)
