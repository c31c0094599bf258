"""Low-precision model memory: parameters, gradients and momentum as packed codes.

Source: LPMM, "Training neural networks with low-precision model memory".
"""

from qmaps.lpmm.adam import LPMMAdam
from qmaps.lpmm.convert import convert
from qmaps.lpmm.footprint import ModelMemory, measure, predict
from qmaps.lpmm.parameter import LowPrecisionParameter
from qmaps.lpmm.sgd import LPMMSGD
from qmaps.lpmm.tensor import LowPrecisionTensor

__all__ = [
    "LPMMSGD",
    "LPMMAdam",
    "LowPrecisionParameter",
    "LowPrecisionTensor",
    "ModelMemory",
    "convert",
    "measure",
    "predict",
]
