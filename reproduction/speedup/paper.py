"""The inputs and the printed results of the 2015 paper.

Source: 8-bit approximations for parallelism, Tables 1 and 3 to 7. Results are kept as printed, for
their last digit says how exact they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from reproduction.speedup.hardware import Hardware, Link
from reproduction.speedup.job import Job
from reproduction.speedup.node import NodeJob, Split

NERVANA_MS = 104.1
"""A pass of AlexNet on one GPU with NervanaGPU's kernels (Table 4)."""
CONVNET2_MS = 17_000 / 96
"""The same with the kernels of convnet2: 17 s for 96 passes (Table 7)."""
FC_MS = 6.5
"""Its fully connected part (Table 4)."""
COVER_MS = 1.3
"""The first product of that part (Table 4)."""

ALEXNET = Job("AlexNet, NervanaGPU kernels", NERVANA_MS - FC_MS, FC_MS, COVER_MS, 9216)
CONVNET2 = replace(ALEXNET, name="AlexNet, convnet2 kernels", conv_ms=CONVNET2_MS - FC_MS)


@dataclass(frozen=True)
class Row:
    """A sub-batch in Tables 5, 6 and 7; pairs are of 32-bit and 8-bit messages.

    Attributes:
        sub_batch: samples.
        size_kb: size of a message (Table 5); the 8-bit one is an eighth of the 32-bit one there,
            where a quarter would be due.
        latency_ms: of a message (Table 5).
        single: synchronization of one pass, ms (Table 6), an input of the model.
        full: synchronization of the full pass (Table 6).
        total: with the forward passes (Table 6).
        nervana: speed-up with one kind of kernels (Tables 1 and 7).
        convnet2: with the other (Table 7).
    """

    sub_batch: int
    size_kb: tuple[float, float]
    latency_ms: tuple[float, float]
    single: tuple[str, str]
    full: tuple[str, str]
    total: tuple[str, str]
    nervana: tuple[str, str]
    convnet2: tuple[str, str]


CLUSTER = (
    Row(128, (144, 18), (0.035, 0.007), ("2.1", "0.35"), ("24.8", "0.35"), ("650", "624"),
        ("13.4", "13.8"), ("20.7", "21.4")),
    Row(256, (288, 36), (0.07, 0.01), ("4.2", "0.55"), ("89.9", "0.55"), ("402", "312"),
        ("20", "24.4"), ("29.7", "35.2")),
    Row(512, (576, 72), (0.1, 0.02), ("7.15", "1.13"), ("181", "1.13"), ("337", "157"),
        ("23", "39.3"), ("33.5", "51.9")),
    Row(1024, (1152, 144), (0.3, 0.04), ("17.4", "2.25"), ("499", "29.5"), ("577", "108"),
        ("14.8", "48.6"), ("22.7", "61")),
    Row(2048, (2312, 289), (0.7, 0.07), ("25.5", "3.26"), ("750", "60.8"), ("789", "100"),
        ("11.3", "50.6"), ("17.7", "62.8")),
    Row(12288, (13872, 1734), (5, 0.06), ("250", "31"), ("7750", "921"), ("7750", "928"),
        ("1.3", "9.7"), ("2.15", "15.5")),
)  # fmt: skip

READ_LATENCY_MS = {2048: (0.3, 0.04), 12288: (5.0, 0.6)}
"""Latencies that Table 6 was made with, where Table 5 prints others: with those of the row above
for 2048, and 0.6 in place of 0.06, its single-pass times come out like all the rest."""

LATENCIES = (
    (3.0, 0.006), (6.0, 0.006), (18.0, 0.007), (36.0, 0.01), (72.0, 0.02), (108.0, 0.03),
    (144.0, 0.035), (288.0, 0.07), (576.0, 0.1), (1152.0, 0.3), (2312.0, 0.7), (13872.0, 5.0),
)  # fmt: skip
"""Size (kB) and latency (ms) of messages over FDR InfiniBand, from Table 5; where it gives a size
two latencies, the one in the column of 32 bits."""

HARDWARE = Hardware("32 nodes of 3 GPUs", 32, 3, Link(6.0, LATENCIES), Link(5.0))

FOUR_GPUS = NodeJob(
    single_ms=NERVANA_MS,
    gpus=4,
    layers=(
        Split("fc 9216x3072", (1.3, 1.3, 1.5), (0.9, 0.9, 0.43), {"32-bit": 1.1, "8-bit": 0.5}),
        Split("fc 3072x3072", (0.45, 0.45, 0.5), (0.3, 0.3, 0.13), {"32-bit": 1.1, "8-bit": 0.5}),
        Split("fc 3072x1000", (0.4, 0.4, 0.2), (0.15, 0.15, 0.08), {"32-bit": 0.4, "8-bit": 0.25}),
    ),
    conv_sync_ms={"32-bit": 0.9, "8-bit": 0.4},
)
"""Tables 3 and 4."""

FOUR_GPUS_PRINTED = {"32-bit": "3.53", "8-bit": "3.67"}
"""Table 1."""
KRIZHEVSKY = "3.66"
"""Speed-up of Krizhevsky (2014) with convnet2's kernels on four GPUs (appendix A.1.3)."""

TRANSFERS = (
    ("conv 11x11, stride 4, 3-64", 0.045, 8, "0.05", ""),
    ("conv 5x5, 64-192", 0.29, 8, "0.45", ""),
    ("conv 3x3, 192-384", 0.63, 8, "1", ""),
    ("conv 3x3, 384-256", 0.85, 8, "1.3", ""),
    ("conv 3x3, 256-256", 0.56, 8, "0.9", ""),
    ("activations of the last convolution", 1.125, 4, "0.9", "0.4"),
    ("fc 9216x3072", 1.5, 4, "1.1", "0.5"),
    ("fc 3072x3072", 1.5, 4, "1.1", "0.5"),
    ("fc 3072x1000", 0.5, 4, "0.4", "0.25"),
)
"""Table 3: layer, MB of a transfer, messages that the printed time stands for at 5 GB/s (gradients
are exchanged twice, activations once, each time four messages), printed ms in 32 and in 8
bits (empty where there is none)."""

COMPRESS_NS, DECOMPRESS_NS = 1.0, 0.5
"""Times for a number (section 3.2)."""

CONVOLUTIONS_MS = ((4, 1, 3.5), (10, 11, 11), (5, 6, 5), (6.5, 5.5, 6.5), (4, 4, 5))
"""Table 4: forward, backward, update of the five convolutions with their pooling."""
