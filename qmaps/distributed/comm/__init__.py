"""Narrow messages between processes: gradients, activations, and errors of activations.

Source: 8-bit approximations for parallelism.
"""

from qmaps.distributed.comm.columns import ColumnParallelLinear
from qmaps.distributed.comm.exchange import Traffic
from qmaps.distributed.comm.hook import QuantizedHook, one_bit_hook, quantized_hook
from qmaps.distributed.comm.reduce import average
from qmaps.distributed.comm.schedule import SubBatches

__all__ = [
    "ColumnParallelLinear",
    "QuantizedHook",
    "SubBatches",
    "Traffic",
    "average",
    "one_bit_hook",
    "quantized_hook",
]
