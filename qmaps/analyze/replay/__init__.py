"""Replays of optimizer states: each recursion under each quantizer beside the exact one."""

from qmaps.analyze.replay.recursion import step_cost
from qmaps.analyze.replay.run import run
from qmaps.analyze.replay.summary import summarize

__all__ = ["run", "step_cost", "summarize"]
