"""Steps of AdamW on a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.case import OURS, Setup, UnavailableError
from benchmarks.cases import bfloat16, rounding
from benchmarks.cases.adamw import (
    EIGHT,
    FOUR,
    FUSED,
    PAPER,
    PRESET,
    RANDOM,
    TORCH,
    Pair,
    Prepare,
    beside,
    eight_bit_peers,
    four_bit_peers,
    ours,
    traffic,
)
from benchmarks.data import Shapes, many, new_gradients, parameters
from benchmarks.gpu.case import GpuCase
from benchmarks.peers import BITSANDBYTES, FLASHOPTIM, need
from benchmarks.timing import Work

FOREACH = "torch foreach"
SIZES = {"a million": 10**6, "ten million": 10**7, "a hundred million": 10**8}
KINDS = {name: TORCH[name] for name in (FUSED, FOREACH)}
EIGHT_BITS, FOUR_BITS = "8bit, float32", "4bit, float32"
"""Presets and dtypes in `benchmarks.gpu.predictions`."""
BILLION, QUARTER = 10**9, 1 << 28
MANY = sum(math.prod(shape) for shape in many(1.0))
# Parameter, gradient and where it is taken from; moments of all methods; what foreach and
# compiled peers need meanwhile; a reference's temporaries for one tensor of four.
NEEDED = 64


def four(elements: int) -> Shapes:
    """Four matrices."""
    width = max(64, math.isqrt(elements // 4) // 64 * 64)
    return [(elements // 4 // width, width)] * 4


def thousand(elements: int) -> Shapes:
    """Tensors of 4 thousand to 64 thousand elements; 1000 of them at full size."""
    return many(elements / MANY)


def steps(
    pair: Pair,
    shapes: Callable[[int], Shapes] = four,
    peers: Mapping[str, Prepare] | None = None,
) -> Callable[[torch.device, int], Setup]:
    """AdamW with `pair`, beside torch's and `peers`."""

    def make(device: torch.device, elements: int) -> Setup:
        setup = beside(parameters(shapes(elements), device=device), pair, KINDS, peers)
        return replace(setup, nbytes={**setup.nbytes, OURS: traffic(pair, twice=False)})

    return make


def other(
    work: Callable[[list[Tensor]], Setup], dtype: torch.dtype
) -> Callable[[torch.device, int], Setup]:
    """A work from the CPU's cases."""

    def make(device: torch.device, elements: int) -> Setup:
        return work(parameters(four(elements), dtype, device))

    return make


class Recorded:
    """Replays of a step recorded in a CUDA graph.

    Attributes:
        form: text for the notes.

    Raises:
        UnavailableError: there is no device.
    """

    form = "recorded once and replayed"

    def __init__(self, optimizer: torch.optim.Optimizer, params: list[Tensor]) -> None:
        if not params[0].is_cuda:
            raise UnavailableError("CUDA graphs need a CUDA device")
        self._optimizer = optimizer  # its states must outlive the recording
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # makes states and compiles
                optimizer.step()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            optimizer.step()

    def __call__(self) -> None:
        """One step."""
        self._graph.replay()


def graphs(device: torch.device, elements: int) -> Setup:
    """Steps of many tensors without the host's part."""
    params = parameters(thousand(elements), device=device)

    return Setup(
        {
            OURS: lambda: Recorded(ours(params, EIGHT), params),
            FUSED: lambda: Recorded(torch.optim.AdamW(params, fused=True, capturable=True), params),
        },
        elements=sum(p.numel() for p in params),
        nbytes={OURS: traffic(EIGHT), FUSED: traffic((None, None))},
        refresh=new_gradients(params),
    )


def bitsandbytes() -> dict[str, Prepare]:
    """Of many shapes torchao would compile each one."""
    return {BITSANDBYTES: lambda params: need("bitsandbytes").optim.AdamW8bit(params).step}


def flashoptim() -> dict[str, Prepare]:
    """8-bit AdamW of FlashOptim on float32 parameters."""
    return {FLASHOPTIM: lambda params: _flashoptim(params, None)}


def _flashoptim(params: list[Tensor], bits: int | None) -> Work:
    step: Work = need("flashoptim").FlashAdamW(params, master_weight_bits=bits).step
    return step


def low_precision(params: list[Tensor]) -> Setup:
    """The CPU's work on bfloat16 parameters, and FlashOptim with 24 bits of each parameter."""
    setup = bfloat16.beside(params)
    peer = {FLASHOPTIM: lambda: _flashoptim(params, 24)}
    return replace(setup, methods={**setup.methods, **peer})


def smaller(name: str, pair: Pair, predicted: str, peers: dict[str, Prepare]) -> list[GpuCase]:
    """A case for each of `SIZES`; torchao would compile each one."""
    return [
        GpuCase(
            f"AdamW {name}, {size} parameters",
            steps(pair, peers=peers),
            count,
            NEEDED,
            predicted={OURS: predicted},
        )
        for size, count in SIZES.items()
    ]


CASES = (
    GpuCase(
        "AdamW 8-bit DE, a billion parameters",
        steps(EIGHT, peers=eight_bit_peers() | flashoptim()),
        BILLION,
        NEEDED,
        share=0.8,
        predicted={OURS: EIGHT_BITS},
        note="the paper of 2021 gives 47 ms for a billion parameters on a V100",
    ),
    GpuCase(
        "AdamW 4-bit B128/DE + B128/linear, a billion parameters",
        steps(FOUR, peers=four_bit_peers()),
        BILLION,
        NEEDED,
        share=0.8,
    ),
    GpuCase(
        "AdamW 4-bit preset, a billion parameters",
        steps(PRESET, peers=four_bit_peers()),
        BILLION,
        NEEDED,
        share=0.8,
        predicted={OURS: FOUR_BITS},
    ),
    GpuCase(
        "AdamW 4-bit of the paper, a billion parameters",
        steps(PAPER),
        BILLION,
        NEEDED,
        share=0.6,
        note="scales of rank 1 need the whole of the new moment: the gradient and its codes are "
        "read twice, which the bound does not count",
    ),
    GpuCase(
        "AdamW 8-bit, 1000 tensors",
        steps(EIGHT, thousand, bitsandbytes()),
        MANY,
        2 * NEEDED,
        floors={BITSANDBYTES: 5, FUSED: 1.5},
        note="4 thousand to 64 thousand elements each; the host's part counts. torchao, which "
        "compiles a step for each shape, is left out",
    ),
    GpuCase(
        "AdamW 8-bit with stochastic rounding",
        other(rounding.beside, torch.float32),
        QUARTER,
        NEEDED,
    ),
    GpuCase(
        "AdamW 8-bit, bfloat16 rounded stochastically",
        other(low_precision, torch.bfloat16),
        QUARTER,
        NEEDED,
        predicted={bfloat16.NEAREST: "8bit, bfloat16"},
        note=bfloat16.NOTE,
    ),
    *smaller("8-bit DE", EIGHT, EIGHT_BITS, bitsandbytes() | flashoptim()),
    *smaller("4-bit preset", PRESET, FOUR_BITS, {}),
    GpuCase("AdamW 8-bit any codebook", steps(RANDOM), QUARTER, NEEDED),
)
# A recording that fails can leave a process unable to record or draw again: so these come last.
GRAPHS = (
    GpuCase(
        "AdamW 8-bit, 1000 tensors, in a CUDA graph",
        graphs,
        MANY,
        2 * NEEDED,
        note="replays of a recorded step: what remains without the host's part",
    ),
)
