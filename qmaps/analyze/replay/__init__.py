"""Replays of optimizer states: each recursion under each quantizer beside the exact one."""

from qmaps.analyze.replay.curves import curves
from qmaps.analyze.replay.run import run
from qmaps.analyze.replay.summary import summarize
from qmaps.analyze.replay.updates import step_cost

__all__ = ["curves", "run", "step_cost", "summarize"]
