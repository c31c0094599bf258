"""Table 6: the largest trainable model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pandas as pd

from reproduction.claim import Claim
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.lpmm import _memory as kept
from reproduction.lpmm._memory import Kept
from reproduction.lpmm._resnet import ResNet, Shape
from reproduction.memory import GIB, architectures

MEMORY = 11
"""GiB, as in the paper."""
TOKENS = 128
HEAD = 64
"""Width of an attention head."""
STEP = 8
"""Step of the width of a residual network, in channels."""


@dataclass(frozen=True)
class Net:
    """A network of one size.

    Attributes:
        shapes: of its parameters.
        activations: bytes stored for the backward pass of one example, in 32 bits.
    """

    shapes: list[Shape]
    activations: int

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(math.prod(shape) for shape in self.shapes)

    def training(self, how: Kept) -> int:
        """Bytes of a training step with one example.

        In low precision the parameter at work is there in 32 bits too, and its gradient.
        """
        decoded = 0 if how in (kept.SGD_32, kept.ADAM_32) else kept.at_work(self.shapes)
        return how.memory(self.shapes).nbytes + self.activations + decoded


def _transformer(layers: int, heads: int) -> Net:
    """RoBERTa-large with other numbers of layers and heads."""
    width = HEAD * heads
    size = replace(
        architectures()["RoBERTa-large"],
        layers=layers, heads=heads, width=width, inner=width, ff=4 * width,
    )  # fmt: skip
    return Net([shape for _, shape in size.shapes()], size.activations(TOKENS, value=4))


def _resnet(net: ResNet) -> Net:
    return Net(list(net.shapes()), net.activations())


@dataclass(frozen=True)
class Family:
    """Networks with one variable size.

    Attributes:
        task, change: words of the table.
        make: returns the network of a size; it grows with the size.
        size: returns the varied quantity, for a size of `make`.
        full, low: storage of full and of low precision.
    """

    task: str
    change: str
    make: Callable[[int], Net]
    size: Callable[[int], int]
    full: Kept
    low: Kept


FAMILIES = (
    Family("language", "layers", lambda n: _transformer(n, 16), int, kept.ADAM_32, kept.ADAM),
    Family(
        "language", "width", lambda n: _transformer(24, n), HEAD.__mul__, kept.ADAM_32, kept.ADAM
    ),
    Family(
        "vision", "layers", lambda n: _resnet(ResNet().deeper(n)), lambda n: 50 + 3 * n,
        kept.SGD_32, kept.SGD,
    ),
    Family(
        "vision", "width", lambda n: _resnet(ResNet(width=STEP * n)), STEP.__mul__,
        kept.SGD_32, kept.SGD,
    ),
)  # fmt: skip


def max_model(family: Family, how: Kept, memory: int) -> int:
    """The largest trainable size in so many bytes; 0 if none fits."""
    low, high = 0, 1
    while family.make(high).training(how) <= memory:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if family.make(middle).training(how) <= memory:
            low = middle
        else:
            high = middle
    return low


def build(_: Context) -> Frames:
    """Both precisions, and by how much the model grows."""
    rows = []
    for family in FAMILIES:
        full, low = (max_model(family, how, MEMORY * GIB) for how in (family.full, family.low))
        before, after = family.make(full).parameters, family.make(low).parameters
        rows.append(
            {
                "task": family.task,
                "varied": family.change,
                "full": family.size(full),
                "low": family.size(low),
                "parameters_full": before,
                "parameters_low": after,
                "times": after / before,
            }
        )
    return {"largest": pd.DataFrame(rows)}


def find(frames: Frames) -> Finding:
    """Compare the largest sizes."""
    table = frames["largest"]
    times = table.set_index(["task", "varied"])["times"].to_dict()
    statements = [
        Claim(
            f"In {MEMORY} GB low precision trains a larger model ({row['task']}, {row['varied']}).",
            bool(row["low"] > row["full"]),
            f"{row['low']:,} against {row['full']:,}, {row['times']:.2f} times the parameters.",
        )
        for row in table.to_dict("records")
    ]
    statements += [
        Claim(
            f"More is won for language than for vision ({varied}).",
            bool(times["language", varied] > times["vision", varied]),
            f"{times['language', varied]:.2f} against {times['vision', varied]:.2f} times the "
            "parameters.",
        )
        for varied in table["varied"].unique()
    ]
    return Finding(
        statements=statements,
        why="Our copy of the paper lacks the table. Computed from shapes: RoBERTa-large with more "
        f"layers or wider, one sequence of {TOKENS} tokens, LPMM-Adam; ResNet-50 with more blocks "
        "in its third stage or wider, one image, LPMM-SGDM; parameters in 12 bits, the rest in 8, "
        "against 32 throughout. Counted are model memory, activations in 32 bits, and in low "
        "precision the largest parameter and its gradient decoded; nothing that a device itself "
        "takes. The model memory's part is checked against live tensors by table 5.",
        tables={"largest": table},
    )


EXHIBIT = Exhibit(
    name="table-6",
    covers=("Table 6",),
    title="The largest model that can be trained in the same memory",
    needs=Needs.NOTHING,
    source="shapes of published models",
    build=build,
    find=find,
)
