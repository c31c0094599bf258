"""The cluster model: data parallel convolutions, then sub-batches through the rest.

Source: 8-bit approximations for parallelism, appendix A.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qmaps.algebra.quantizer import Quantizer, quantizer
from reproduction.speedup._checks import count
from reproduction.speedup.hardware import Hardware
from reproduction.speedup.job import Job

if TYPE_CHECKING:
    import pandas as pd

FULL = "32-bit"
"""The label of messages in float32."""


def unhidden(single_ms: float, cover_ms: float, peers: int) -> float:
    """Synchronization time of a full pass that is not hidden by computation.

    A synchronization shorter than `cover_ms` is hidden by the product computed at the same time,
    in all sub-batches but the first. Of a longer one the difference remains, once for each of the
    `peers`.

    Args:
        single_ms: synchronization of one sub-batch, in milliseconds.
        cover_ms: the hiding product, in milliseconds.
        peers: the number of other nodes, or of other devices of a single node.

    Returns:
        Milliseconds.

    >>> unhidden(2.1, 1.3, 31), unhidden(0.35, 1.3, 31)
    (24.8, 0.35)
    """
    if single_ms < cover_ms:
        return single_ms
    return round(peers * (single_ms - cover_ms), 12)


@dataclass(frozen=True)
class Prediction:
    """One pass over the batch of all devices.

    Attributes:
        gpus: devices.
        sub_batch: samples in one pass of the fully connected part.
        passes: number of sub-batches.
        forward_ms: the fully connected part of all of them.
        single_ms: synchronization of one.
        full_ms: unhidden synchronization of the pass.
        total_ms: `forward_ms` and `full_ms`.
        speedup: against one device on the same samples.
    """

    gpus: int
    sub_batch: int
    passes: int
    forward_ms: float
    single_ms: float
    full_ms: float
    total_ms: float
    speedup: float


def predict(
    job: Job,
    hardware: Hardware,
    sub_batch: int,
    q: Quantizer | str | None = None,
    *,
    single_ms: float | None = None,
) -> Prediction:
    """Time and speed-up of one pass of `job` on all of `hardware`.

    Args:
        job: the net.
        hardware: its hardware.
        sub_batch: samples of a sub-batch.
        q: quantizer of the activations, or its spec; None sends float32.
        single_ms: measured synchronization of one sub-batch, in milliseconds; None computes it by
            `Hardware.message_ms`.
    """
    count("sub_batch", sub_batch)
    q = None if q is None else quantizer(q)
    parts = hardware.nodes if hardware.nodes > 1 else hardware.gpus_per_node
    passes = math.ceil(hardware.gpus * job.batch / sub_batch)
    if single_ms is None:
        single_ms = hardware.message_ms(math.ceil(sub_batch * job.features / parts), q)
    forward = passes * job.fc_ms
    full = unhidden(single_ms, job.cover_ms, parts - 1)
    total = forward + full
    speedup = hardware.gpus * job.single_ms / (job.conv_ms + total)
    return Prediction(hardware.gpus, sub_batch, passes, forward, single_ms, full, total, speedup)


def sizes(hardware: Hardware) -> list[Hardware]:
    """The same hardware with fewer devices: one node's, then nodes by doubling."""
    inside = [
        replace(hardware, nodes=1, gpus_per_node=n) for n in _doubling(hardware.gpus_per_node)
    ]
    return inside + [replace(hardware, nodes=n) for n in _doubling(hardware.nodes) if n > 1]


def curves(
    job: Job,
    hardware: Hardware,
    quantizers: Mapping[str, Quantizer | None],
    *,
    progress: Callable[[int, int, str], object] | None = None,
) -> pd.DataFrame:
    """Speed-up over devices, each at its best sub-batch, and over sub-batches on all devices.

    Args:
        job: the net.
        hardware: the largest hardware; curves begin with one device of it.
        quantizers: quantizers of the activations by label; None sends float32.
        progress: called after each quantizer with the number done, the number of all, and the
            label.

    Returns:
        `panel` ("GPUs" or "sub-batch"), `quantizer` (label), `gpus`, `sub_batch`, `speedup`,
        `single_ms`, `full_ms`, `total_ms`.
    """
    import pandas as pd

    rows = []
    grown = sizes(hardware)
    for done, (label, q) in enumerate(quantizers.items()):
        for size in grown:
            tried = [predict(job, size, s, q) for s in _sub_batches(job, size)]
            rows.append(("GPUs", label, max(tried, key=lambda estimate: estimate.speedup)))
        rows += [
            ("sub-batch", label, predict(job, hardware, s, q)) for s in _sub_batches(job, hardware)
        ]
        if progress is not None:
            progress(done + 1, len(quantizers), label)
    names = ("gpus", "sub_batch", "speedup", "single_ms", "full_ms", "total_ms")
    return pd.DataFrame(
        {"panel": panel, "quantizer": label, **{name: getattr(estimate, name) for name in names}}
        for panel, label, estimate in rows
    )


def _sub_batches(job: Job, hardware: Hardware) -> Iterable[int]:
    """Sub-batch sizes: the batch of one device, doubled up to the batch of all devices."""
    return [job.batch * times for times in _doubling(hardware.gpus)]


def _doubling(last: int) -> list[int]:
    """1, 2, 4, ... and `last`."""
    counts = [2**k for k in range(last.bit_length())]
    return counts if counts[-1] == last else [*counts, last]
