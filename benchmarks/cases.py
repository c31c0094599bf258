"""What is timed: each case is a work of qmaps and the same work of its peers.

All outputs are allocated beforehand; fresh pages would cost more than the work.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import qmaps
from benchmarks.timing import Work
from qmaps.maps import Codebook
from qmaps.optim import AdamW

Contenders = dict[str, Work]
OURS = "qmaps"


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        name: what is done.
        make: given the scale of sizes (1 is full), the contenders and the number of elements.
        nbytes: bytes per element that have to cross the memory bus; 0 where that is no limit.
        floors: least ratio to each peer that is asked for.
    """

    name: str
    make: Callable[[float], tuple[Contenders, int]]
    nbytes: float
    floors: dict[str, float]


def has_bitsandbytes() -> bool:
    """Whether the peer is installed (extra ``bench``)."""
    return importlib.util.find_spec("bitsandbytes") is not None


def random_codebook() -> Codebook:
    """256 values without any structure."""
    values = torch.randn(256, generator=torch.Generator().manual_seed(0)) / 4
    return Codebook(values.clamp(-1, 1).unique(), label="random")


def quantizer(spec: str) -> qmaps.Quantizer:
    """`spec`, in which ``random`` names `random_codebook`."""
    return qmaps.quantizer(spec, codebooks=[random_codebook()])


def _data(scale: float) -> Tensor:
    return torch.randn(max(1 << 14, int((1 << 24) * scale) // 4096 * 4096))


def encode(spec: str) -> Callable[[float], tuple[Contenders, int]]:
    """Quantize float32 into storage that is there."""

    def make(scale: float) -> tuple[Contenders, int]:
        x, q = _data(scale), quantizer(spec)
        t = q.quantize(x)
        works: Contenders = {OURS: lambda: q.quantize_unchecked(x, out=t)}
        if has_bitsandbytes():
            import bitsandbytes.functional as bnb

            size, code = q.normalizer.size, _full(q)
            absmax = torch.empty(-(-x.numel() // size))
            out = torch.empty(x.numel(), dtype=torch.uint8)
            works["bitsandbytes"] = lambda: bnb.quantize_blockwise(
                x, code=code, absmax=absmax, out=out, blocksize=size
            )
        return works, x.numel()

    return make


def decode(spec: str) -> Callable[[float], tuple[Contenders, int]]:
    """Dequantize into storage that is there, if the peer lets us."""

    def make(scale: float) -> tuple[Contenders, int]:
        x, q = _data(scale), quantizer(spec)
        t, y = q.quantize(x), torch.empty_like(x)
        works: Contenders = {OURS: lambda: t.dequantize(out=y)}
        if has_bitsandbytes():
            import bitsandbytes.functional as bnb

            codes, state = bnb.quantize_blockwise(x, code=_full(q), blocksize=q.normalizer.size)
            # Its `out=` has no kernel for CPU tensors.
            works["bitsandbytes"] = lambda: bnb.dequantize_blockwise(codes, state)
        return works, x.numel()

    return make


def _full(q: qmaps.Quantizer) -> Tensor:
    """The codebook filled up to 256 values."""
    code = q.map.codebook()
    return torch.cat([code, code[-1:].expand(256 - code.numel())])


def steps(
    first: str | None, second: str | None, shapes: Callable[[float], Iterable[tuple[int, ...]]]
) -> Callable[[float], tuple[Contenders, int]]:
    """AdamW steps beside torch's own 32-bit ones on the same parameters."""

    def make(scale: float) -> tuple[Contenders, int]:
        params = []
        for shape in shapes(scale):
            p = torch.randn(shape).requires_grad_()
            p.grad = torch.randn(shape) * 1e-3
            params.append(p)
        pair = {
            "exp_avg": None if first is None else quantizer(first),
            "exp_avg_sq": None if second is None else quantizer(second),
        }
        works: Contenders = {OURS: AdamW(params, state_quantizers=pair).step}
        for kind in ({"fused": True}, {"foreach": True}, {"foreach": False}):
            ((name, chosen),) = kind.items()
            label = f"torch {name}" if chosen else "torch for-loop"
            works[label] = torch.optim.AdamW(params, **kind).step
        return works, sum(p.numel() for p in params)

    return make


def matrices(scale: float) -> list[tuple[int, ...]]:
    """Four of 4096 x 4096."""
    side = max(128, int(4096 * scale**0.5))
    return [(side, side)] * 4


def many(scale: float) -> list[tuple[int, ...]]:
    """1000 of 4 thousand to 64 thousand elements."""
    count = max(20, int(1000 * scale))
    return [(int(n),) for n in torch.linspace(4100, 65536, count).tolist()]


def gpt2(scale: float) -> list[tuple[int, ...]]:
    """The parameters of GPT-2 small: 124 million in 148 tensors."""
    width = max(64, int(768 * scale**0.5) // 64 * 64)
    norm = [(width,), (width,)]
    attention = [(3 * width, width), (3 * width,), (width, width), (width,)]
    network = [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    layer = [*norm, *attention, *norm, *network]
    return [(int(50257 * scale**0.5), width), (1024, width), *layer * 12, (width,), (width,)]


def order_statistics(
    method: Callable[[Tensor], Tensor],
) -> Callable[[float], tuple[Contenders, int]]:
    """256 quantiles beside what finds the order statistics on both sides of each."""

    def make(scale: float) -> tuple[Contenders, int]:
        x = _data(scale)
        array = x.numpy()
        position = (np.arange(256) + 0.5) / 256 * (x.numel() - 1)
        ranks = np.unique([np.floor(position), np.ceil(position)]).astype(int)
        works: Contenders = {
            OURS: lambda: method(x),
            "numpy.partition": lambda: np.partition(array, ranks),
            "numpy.sort": lambda: np.sort(array),
            "torch.sort": x.sort,
        }
        return works, x.numel()

    return make


def chunk_quantiles(scale: float) -> tuple[Contenders, int]:
    """SRAM-Quantiles beside sorting the chunks, which is most of it."""
    x = _data(scale)
    rows = x.view(-1, 4096)
    works: Contenders = {
        OURS: lambda: qmaps.quantiles.sram(x),
        "numpy.sort": lambda: np.sort(rows.numpy(), axis=1),
        "torch.sort": lambda: rows.sort(dim=1),
    }
    return works, x.numel()


EIGHT = "B256/DE@8s", "B256/DE-0@8u"
FUSED = "torch fused"

CASES = (
    Case("quantize B256/DE@8s", encode("B256/DE@8s"), 5, {"bitsandbytes": 25}),
    Case("quantize B2048/DE@8s", encode("B2048/DE@8s"), 5, {"bitsandbytes": 25}),
    Case("quantize B256/random@8s", encode("B256/random@8s"), 5, {"bitsandbytes": 12}),
    Case("dequantize B256/DE@8s", decode("B256/DE@8s"), 5, {"bitsandbytes": 8}),
    Case("AdamW 32-bit, four matrices", steps(None, None, matrices), 28, {}),
    Case("AdamW 8-bit DE, four matrices", steps(*EIGHT, matrices), 16, {FUSED: 1.2}),
    Case("AdamW 8-bit any codebook, four matrices",
         steps("B256/random@8s", "B256/power3@8u", matrices), 16, {FUSED: 0.8}),
    Case("AdamW 4-bit B128/DE + B128/linear, four matrices",
         steps("B128/DE@4s", "B128/linear@4u", matrices), 14, {FUSED: 1.7}),
    Case("AdamW 4-bit of the paper, four matrices",
         steps("B128/DE@4s", "rank1/linear@4u", matrices), 18.5, {FUSED: 0.8}),
    Case("AdamW 8-bit, stochastic, four matrices",
         steps("B256/DE@8s+sr", "B256/DE-0@8u+sr", matrices), 16, {}),
    Case("AdamW 8-bit, GPT-2 small", steps(*EIGHT, gpt2), 16, {FUSED: 1.3}),
    Case("AdamW 8-bit, 1000 tensors", steps(*EIGHT, many), 16, {FUSED: 2.0}),
    Case("256 quantiles, exact", order_statistics(qmaps.quantiles.exact), 8,
         {"numpy.partition": 25, "torch.sort": 70}),
    Case("256 quantiles, approximate", order_statistics(qmaps.quantiles.approximate), 4, {}),
    Case("256 quantiles, SRAM-Quantiles", chunk_quantiles, 0, {}),
)  # fmt: skip
"""Those that run today."""
