"""How much faster training gets with more devices, and what 8-bit messages change about it.

The model of the 2015 paper's appendix, on its own inputs (`tables`) and on hardware that is
described or measured (`Hardware`, `calibrate`).
"""

from qmaps.distributed.speedup.calibrate import calibrate
from qmaps.distributed.speedup.hardware import Hardware, Link
from qmaps.distributed.speedup.job import Job
from qmaps.distributed.speedup.model import Prediction, curves, predict, unhidden
from qmaps.distributed.speedup.node import NodeJob, Split
from qmaps.distributed.speedup.tables import tables

__all__ = [
    "Hardware",
    "Job",
    "Link",
    "NodeJob",
    "Prediction",
    "Split",
    "calibrate",
    "curves",
    "predict",
    "tables",
    "unhidden",
]
