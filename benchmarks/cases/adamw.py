"""Steps of AdamW with quantized moments beside 32-bit and other quantized ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.case import OURS, Case, Setup
from benchmarks.data import (
    Shapes,
    gpt2,
    many,
    matrices,
    new_gradients,
    parameters,
    quantizer,
)
from benchmarks.limits import Needs, decoding, encoding
from benchmarks.peers import BITSANDBYTES, TORCHAO, need, torchao, with_backend
from benchmarks.timing import Work
from qmaps.optim import AdamW

EIGHT = "B256/DE@8s", "B256/DE-0@8u"
RANDOM = "B256/random@8s", "B256/random-u@8u"
FOUR = "B128/DE@4s", "B128/linear@4u"
PRESET = "B128/DE@4s+sr", "B128/DE-0@4u"
PAPER = "B128/DE@4s", "rank1/linear@4u"
FUSED = "torch fused"
TORCH: dict[str, dict[str, bool]] = {
    FUSED: {"fused": True},
    "torch foreach": {"foreach": True},
    "torch for-loop": {"foreach": False},
}

Pair = tuple[str | None, str | None]
Prepare = Callable[[list[Tensor]], Work]


def ours(params: list[Tensor], pair: Pair) -> AdamW:
    """Our optimizer with these moments."""
    first, second = (None if spec is None else quantizer(spec) for spec in pair)
    return AdamW(params, state_quantizers={"exp_avg": first, "exp_avg_sq": second})


def eight_bit_peers() -> dict[str, Prepare]:
    """8-bit AdamW of bitsandbytes and torchao."""
    return {
        BITSANDBYTES: lambda params: need("bitsandbytes").optim.AdamW8bit(params).step,
        TORCHAO: torchao("AdamW8bit"),
    }


def four_bit_peers() -> dict[str, Prepare]:
    """4-bit AdamW of torchao; bitsandbytes has none."""
    return {TORCHAO: torchao("AdamW4bit")}


def traffic(specs: Iterable[str | None], size: int = 4, *, twice: bool = True) -> float:
    """Bytes per element of one step: the parameter, the gradient, and all states.

    A state is computed twice if its scales need all of the new state, as those of ``rank1`` do: the
    gradient and its codes are read once more.

    Args:
        specs: quantizers of the states; None is 32 bits.
        size: bytes of an element of the parameter, and of its gradient.
        twice: include the second reading; without it, the result is a lower bound for any step.
    """
    total = 3.0 * size
    for spec in specs:
        total += 2 * stored(spec)
        if twice and spec is not None and not hasattr(quantizer(spec).normalizer, "size"):
            total += size + stored(spec)
    return total


def stored(spec: str | None) -> float:
    """Bytes per element of a state: its codes, and the scales of blocks; None is 32 bits."""
    if spec is None:
        return 4.0
    q = quantizer(spec)
    return q.map.bits / 8 + 4 / getattr(q.normalizer, "size", float("inf"))


def shuffles(specs: Iterable[str | None]) -> float:
    """Shuffles per element to decode and encode these states."""
    quantizers = [quantizer(spec) for spec in specs if spec is not None]
    return sum(decoding(q) + encoding(q) for q in quantizers)


def writing(specs: Iterable[str | None], size: int = 4) -> float:
    """Written bytes of `traffic`: the parameter and all states."""
    return size + sum(stored(spec) for spec in specs)


def needs(specs: Sequence[str | None], size: int = 4) -> Needs:
    """Arithmetic per element of an AdamW step with these moments.

    One root of the second moment, the division by it, one division by a scale for each encoded
    moment, and the decoding and encoding of the moments.
    """
    divisions = 1.0 + sum(spec is not None for spec in specs)
    return Needs(writing(specs, size), divisions, 1.0, shuffles(specs))


def matches(
    make: Callable[[list[Tensor]], torch.optim.Optimizer], dtype: torch.dtype = torch.float32
) -> dict[str, float]:
    """True if the engine in use gives the reference's bits on a small matrix."""
    results = []
    for backend in (None, "reference"):
        params = parameters([(96, 128)], dtype)
        refresh, step = new_gradients(params), make(params).step
        for number in range(3):
            refresh(number)
            if backend is None:
                step()
                continue
            with with_backend(backend):
                step()
        results.append(params[0].detach())
    same = (results[0] == results[1]).float().mean().item()
    return {"share of parameters equal to the reference's after 3 steps": same}


def beside(
    params: list[Tensor],
    pair: Pair,
    kinds: Mapping[str, Mapping[str, bool]],
    peers: Mapping[str, Prepare] | None = None,
) -> Setup:
    """AdamW with `pair`, beside torch's 32-bit ones and `peers`, all on the same parameters."""
    methods: dict[str, Callable[[], Work]] = {OURS: lambda: ours(params, pair).step}
    for name, options in kinds.items():
        methods[name] = lambda options=options: torch.optim.AdamW(params, **options).step
    for name, prepare in (peers or {}).items():
        methods[name] = lambda prepare=prepare: prepare(params)
    return Setup(
        methods,
        elements=sum(p.numel() for p in params),
        nbytes={OURS: traffic(pair), FUSED: traffic((None, None))},
        needs={OURS: needs(pair), FUSED: needs((None, None))},
        refresh=new_gradients(params),
    )


def steps(
    pair: Pair,
    shapes: Callable[[float], Shapes],
    peers: Mapping[str, Prepare] | None = None,
) -> Callable[[float], Setup]:
    """`beside` on the CPU, and whether the answers are right."""

    def make(scale: float) -> Setup:
        setup = beside(parameters(shapes(scale)), pair, TORCH, peers)
        return replace(setup, check=lambda: matches(lambda params: ours(params, pair)))

    return make


CASES = (
    Case("AdamW 32-bit, four matrices", steps((None, None), matrices)),
    Case(
        "AdamW 8-bit DE, four matrices",
        steps(EIGHT, matrices, eight_bit_peers()),
        goal=0.75,
    ),
    Case(
        "AdamW 8-bit any codebook, four matrices",
        steps(RANDOM, matrices),
    ),
    Case(
        "AdamW 4-bit B128/DE + B128/linear, four matrices",
        steps(FOUR, matrices, four_bit_peers()),
        goal=0.75,
    ),
    Case("AdamW 4-bit preset, four matrices", steps(PRESET, matrices, four_bit_peers()), goal=0.75),
    Case(
        "AdamW 4-bit of the paper, four matrices",
        steps(PAPER, matrices),
    ),
    Case("AdamW 8-bit, GPT-2 small", steps(EIGHT, gpt2), goal=0.75),
    Case("AdamW 8-bit, 1000 tensors", steps(EIGHT, many), goal=0.75),
)
