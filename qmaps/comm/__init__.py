"""Narrow messages between processes: gradients, activations, and errors of activations.

Source: 8-bit approximations for parallelism.
"""

from qmaps.comm.columns import ColumnParallelLinear
from qmaps.comm.hook import QuantizedHook, one_bit_hook, quantized_hook
from qmaps.comm.reduce import average
from qmaps.comm.schedule import SubBatches
from qmaps.comm.traffic import Traffic

__all__ = [
    "ColumnParallelLinear",
    "QuantizedHook",
    "SubBatches",
    "Traffic",
    "average",
    "one_bit_hook",
    "quantized_hook",
]
