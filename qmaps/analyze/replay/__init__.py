"""Replays of optimizer states: each recursion under each quantizer beside the exact one."""

from qmaps.analyze.replay.recursion import step_cost
from qmaps.analyze.replay.run import run
from qmaps.analyze.replay.summary import curves, summarize

__all__ = ["curves", "run", "step_cost", "summarize"]
