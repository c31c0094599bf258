"""Narrow messages between processes, such as gradients.

Source: 8-bit approximations for parallelism.
"""

from qmaps.distributed.comm.exchange import Traffic
from qmaps.distributed.comm.hook import QuantizedHook, quantized_hook
from qmaps.distributed.comm.reduce import average

__all__ = [
    "QuantizedHook",
    "Traffic",
    "average",
    "quantized_hook",
]
