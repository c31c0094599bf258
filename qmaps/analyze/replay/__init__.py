"""Replays of optimizer states: each recursion under each quantizer beside the exact one."""

from typing import TYPE_CHECKING

from qmaps.registry import lazy

if TYPE_CHECKING:
    from qmaps.analyze.replay.run import run
    from qmaps.analyze.replay.step_cost import step_cost
    from qmaps.analyze.replay.summary import summarize

__all__ = ["run", "step_cost", "summarize"]

lazy(__name__, {"run": ("run",), "step_cost": ("step_cost",), "summary": ("summarize",)})
