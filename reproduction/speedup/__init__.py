"""Speed-up of training by more devices, with 32-bit and with 8-bit messages.

The model of the 2015 paper's appendix, on its own inputs (`tables`) and on described or measured
hardware (`Hardware`, `calibrate`). The time of a pass is the sum of the data parallel convolutional
part, of the fully connected part, once for each sub-batch, and of the synchronization not hidden by
computation.

>>> net = Job("mine", conv_ms=98, fc_ms=6.5, cover_ms=1.3, features=9216)
>>> boxes = Hardware("4 boxes", nodes=4, gpus_per_node=2, network=Link(1.2), local=Link(12))
>>> for messages in (None, "B2048/tree@8s", "B2048/tree@4s"):
...     prediction = predict(net, boxes, sub_batch=512, q=messages)
...     print(messages, f"{prediction.single_ms:.2f} ms {prediction.speedup:.2f}")
None 13.37 ms 5.68
B2048/tree@8s 3.35 ms 7.14
B2048/tree@4s 1.68 ms 7.46
"""

from reproduction.speedup.calibrate import calibrate
from reproduction.speedup.hardware import Hardware, Link
from reproduction.speedup.job import Job
from reproduction.speedup.model import Prediction, curves, predict, unhidden
from reproduction.speedup.node import NodeJob, Split
from reproduction.speedup.tables import tables

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
