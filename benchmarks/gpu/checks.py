"""Checks: the device's engine gives the bits of the reference there, and of the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import qmaps
from benchmarks.cases.adamw import EIGHT, FOUR, PAPER, PRESET, RANDOM, ours
from benchmarks.cases.rounding import STOCHASTIC
from benchmarks.data import generator, quantizer
from benchmarks.gpu.place import Place
from qmaps import quantiles
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.maps.base import limits
from qmaps.ops.backends import cuda_engine, use_backend
from qmaps.optim import AdamW, AdamW8bit

Row = dict[str, Any]
Answers = dict[str, Tensor]
Answer = Callable[[torch.device, int], Answers]

WIDTH = 515
"""Columns of the quantized matrix: no multiple of anything."""
ROWS, DRY_ROWS = 4591, 67
"""Rows of the quantized matrix: more elements than a large device takes at once."""
SHAPES = ((96, 128), (257, 129), (5000,), (7,))
SUMS = 1e-9
"""Metrics may differ in the order of their sums, in float64; all else has to be equal."""
STEPS = 3
ODD = ((5001,), (3, 1677), (4097,))
"""More shapes for steps with extreme gradients."""
RUN = 300
"""Elements of equal magnitude in a row: more than a block, so that some blocks hold no others."""
SPECIAL = (
    *(0.0, 1e-45, 1e-42, 1.1754943e-38, 1e-30, 7.888609e-31, 7.888608e-31, 1e-20, 1e-8),
    *(1.0, 1024.0, 1e10, 1e19, 1.8e19, 1.9e19, 3e20, 3.4028235e38),
)
"""Magnitudes of gradients: subnormal ones, those around the bounds of quick divisions, and those
whose squares are about to overflow, or do."""
BLOCK = 8
"""Elements of a block; the scales of the blocks have all mantissas."""
DRY_STRIDE = 1021
"""Stride over the mantissas in a dry run."""


@dataclass(frozen=True)
class Check:
    """Answers of one kind, computed three times.

    Attributes:
        name: name of the answers.
        answers: computes tensors by name, given a device and a number of rows.
        tolerance: relative, 0 for equal bits.
    """

    name: str
    answers: Answer
    tolerance: float = 0.0

    def measure(self, place: Place) -> Row:
        """A line of the report: differences of the engine from both references."""
        rows = DRY_ROWS if place.dry else ROWS
        on_device = _on_cpu(self.answers(place.device, rows))
        with use_backend("reference"):
            reference = _on_cpu(self.answers(place.device, rows))
        expected = {
            "the reference on the same device": reference,
            "qmaps on the CPU": _on_cpu(self.answers(torch.device("cpu"), rows)),
        }
        wrong = [
            f"{name} differs from {whose} in {count} of {on_device[name].numel()} elements"
            for whose, answers in expected.items()
            for name in on_device
            if (count := differing(on_device[name], answers[name], self.tolerance))
        ]
        return {
            "name": self.name,
            "compared": sorted(on_device),
            "wrong": wrong,
            "failed": bool(wrong),
        }


@dataclass(frozen=True)
class EngineCheck:
    """Check for an engine of the device.

    Attributes:
        name: name of the check.
    """

    name: str

    def measure(self, place: Place) -> Row:
        """A line of the report."""
        missing = place.on_gpu and cuda_engine(torch.empty(1, device=place.device)) is None
        reason = next(backend.reason for backend in qmaps.backends() if backend.name == "cuda")
        wrong = [f"there is none, all is done by the reference: {reason}"] if missing else []
        return {"name": self.name, "compared": [], "wrong": wrong, "failed": missing}


def differing(a: Tensor, b: Tensor, tolerance: float) -> int:
    """Number of different elements; all if the tensors do not match."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return max(1, a.numel())
    same = (a == b) | (a.isnan() & b.isnan()) if a.is_floating_point() else a == b
    if tolerance:
        same |= (a - b).abs() <= tolerance * b.abs()
    elif a.is_floating_point():
        same &= (a.signbit() == b.signbit()) | a.isnan()
    return int((~same).sum())


def quantized(spec: str, dtype: torch.dtype) -> Answer:
    """Codes, scales and values of a matrix."""

    def answers(device: torch.device, rows: int) -> Answers:
        q = quantizer(spec)
        x = sample((rows, WIDTH), signed=q.map.signed).to(dtype).to(device)
        t = q.quantize_unchecked(x, key=qmaps.RoundingKey(seed=3, tensor=5, step=7))
        checked = q.quantize(x, key=qmaps.RoundingKey(seed=3, tensor=5, step=7))
        scales = {f"scales {number}": scale for number, scale in enumerate(t.scales)}
        values = {"values": t.dequantize(), "bfloat16 values": t.dequantize(dtype=torch.bfloat16)}
        return {"codes": t.packed, "codes, checked": checked.packed, **scales, **values}

    return answers


def stepped(
    make: Callable[[list[Tensor]], torch.optim.Optimizer],
    dtype: torch.dtype = torch.float32,
    *,
    extreme: bool = False,
) -> Answer:
    """Parameters and states after some steps.

    With `extreme`, gradients are `extremes`, and every second parameter and gradient is a view out
    of reach of wide accesses.
    """

    def answers(device: torch.device, rows: int) -> Answers:
        draw = generator(4)

        def placed(x: Tensor, number: int) -> Tensor:
            x = x.to(device, dtype)
            return unaligned(x) if extreme and number % 2 else x

        shapes = (*SHAPES, *(ODD if extreme else ()), (rows, WIDTH))
        params = [placed(torch.randn(s, generator=draw), i) for i, s in enumerate(shapes)]
        optimizer = make(params)
        for _ in range(STEPS):
            for number, p in enumerate(params):
                gradient = 1e-3 * torch.randn(p.shape, generator=draw)
                p.grad = placed(extremes(gradient) if extreme else gradient, number)
            optimizer.step()
        tensors = {f"parameter {number}": p for number, p in enumerate(params)}
        for number, p in enumerate(params):
            for name, state in optimizer.state[p].items():
                tensors |= _parts(f"{name} {number}", state)
        return tensors

    return answers


def extremes(x: Tensor) -> Tensor:
    """`x` with runs of `SPECIAL` values, alone and among usual ones, of changing signs."""
    values, flat = torch.tensor(SPECIAL), x.view(-1)
    place = torch.arange(flat.numel())
    special = values[place // RUN % len(values)] * x.view(-1).sign()
    # Whole runs, then runs in which one of three is special.
    rare = (place // (RUN * len(values)) % 2 == 1) & (place % 3 > 0)
    return torch.where(rare, flat, special).view(x.shape)


def unaligned(x: Tensor) -> Tensor:
    """The same numbers one element behind an aligned address."""
    memory = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)
    return memory[1:].view(x.shape).copy_(x)


def divided_by_scales(device: torch.device, rows: int) -> Answers:
    """Codes of numbers around the ties of a codebook, under scales of every mantissa."""
    q = qmaps.quantizer(f"B{BLOCK}/DE@8s")
    t = q.quantize(around_ties(limits(q.map), 1 if rows == ROWS else DRY_STRIDE).to(device))
    return {"codes": t.packed, "scales": t.scales[0]}


@functools.lru_cache(maxsize=1)
def around_ties(ties: Tensor, stride: int) -> Tensor:
    """Blocks of a scale and of six numbers next to its products with two of `ties`."""
    ties = ties[ties > 0]
    mantissas = torch.arange(0, 1 << 23, stride, dtype=torch.int32)
    # Exponents from 2^-30 to 2^9.
    scales = (mantissas + ((97 + mantissas % 40) << 23)).view(torch.float32)
    x = torch.zeros(len(scales), BLOCK)
    x[:, 0] = scales
    for column, number in ((1, mantissas), (4, mantissas // len(ties))):
        x[:, column] = near = ties[number % len(ties)] * scales
        x[:, column + 1] = near.nextafter(scales)
        x[:, column + 2] = near.nextafter(torch.zeros(()))
    x[:, 4:7] *= -1
    return x.view(-1)


def divided_by_roots(device: torch.device, rows: int) -> Answers:
    """Step of AdamW from zero, without eps: hard-to-round quotients, by all roots."""
    stride = 1 if rows == ROWS else DRY_STRIDE
    bits = torch.arange(0, 1 << 24, stride, dtype=torch.int32) + (107 << 23)
    v = bits.view(torch.float32)  # from 2^-20 to 2^-18
    m = hard_numerators(v.sqrt())
    # Averages halve, gradients are 0, the learning rate is 1, and the corrections are 1.
    p = torch.zeros(v.shape, device=device)
    p.grad = torch.zeros_like(p)
    optimizer = AdamW([p], lr=1.0, betas=(0.5, 0.5), eps=0.0, weight_decay=0.0)
    optimizer.step()
    state = optimizer.state[p]
    p.zero_()
    state["exp_avg"].copy_(2 * m)
    state["exp_avg_sq"].copy_(2 * v)
    state["step"].fill_(200)
    optimizer.step()
    return {"parameter": p, "exp_avg": state["exp_avg"], "exp_avg_sq": state["exp_avg_sq"]}


def hard_numerators(d: Tensor) -> Tensor:
    """Numbers of 24 bits with quotients by `d` as near as possible to a tie of two floats.

    With the integers X and D of the mantissas, D odd, (2 Q + 1) D - 2^25 X is 1 or -1: X / D is
    1 / 2^25 / D beside (2 Q + 1) / 2^25. For an even mantissa of `d`, the next one is taken.
    """
    odd = (d.view(torch.int32).long() & 0x7FFFFF) | 0x800001
    inverse = odd
    for _ in range(4):  # of 3 bits at first, then of twice as many
        inverse = (inverse * (2 - odd * inverse)) & 0x1FFFFFF
    twice = torch.where(inverse < 1 << 24, (1 << 25) - inverse, inverse)  # 2 Q + 1, of 25 bits
    return ((twice * odd + (1 << 24)) >> 25).float() * 2.0**-33


def all_quantiles(device: torch.device, rows: int) -> Answers:
    """Of each kind."""
    x = sample((rows * WIDTH,), signed=True).to(device)
    return {kind.__name__: kind(x) for kind in (quantiles.exact, quantiles.sram)}


def all_metrics(spec: str) -> Answer:
    """Every metric of a matrix."""

    def answers(device: torch.device, rows: int) -> Answers:
        q = quantizer(spec)
        metrics = q.error(sample((rows, WIDTH), signed=q.map.signed).to(device))
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in metrics.items()}

    return answers


def sample(shape: tuple[int, ...], *, signed: bool) -> Tensor:
    """Values of many magnitudes, with some zeros."""
    draw = generator(1)
    x = torch.randn(shape, generator=draw) * torch.exp2(4 * torch.randn(shape, generator=draw))
    x.view(-1)[300:900] = 0
    return x if signed else x.abs()


def _parts(name: str, state: object) -> Answers:
    if isinstance(state, QuantizedTensor):
        scales = {f"{name}: scales {number}": scale for number, scale in enumerate(state.scales)}
        return {f"{name}: codes": state.packed, **scales}
    return {name: state} if isinstance(state, Tensor) else {}


def _on_cpu(answers: Answers) -> Answers:
    return {name: answer.detach().cpu() for name, answer in answers.items()}


SPECS = (
    "B256/DE@8s", "B2048/DE-0@8u", "B128/DE@4s", "rank1/linear@4u", "B32x8/DE@4s", "row/DE@5s",
    "B256/random@8s", "B256/DE@8s+sr", "logB128/log2@8u",
)  # fmt: skip
PAIRS = {
    "8-bit": EIGHT,
    "4-bit": FOUR,
    "4-bit preset": PRESET,
    "4-bit of the paper": PAPER,
    "any codebook": RANDOM,
    "stochastic rounding": STOCHASTIC,
    "32-bit": (None, None),
}

EXTREME = {name: PAIRS[name] for name in ("8-bit", "4-bit", "4-bit preset", "stochastic rounding")}

CHECKS: tuple[Check | EngineCheck, ...] = (
    EngineCheck("an engine for the device"),
    *(Check(f"quantize {spec}", quantized(spec, torch.float32)) for spec in SPECS),
    Check("quantize B256/DE@8s, bfloat16", quantized("B256/DE@8s", torch.bfloat16)),
    *(
        Check(f"AdamW {name}", stepped(lambda params, pair=pair: ours(params, pair)))
        for name, pair in PAIRS.items()
    ),
    Check(
        "AdamW 8-bit, bfloat16 rounded stochastically",
        stepped(lambda params: AdamW8bit(params, stochastic_rounding=True), torch.bfloat16),
    ),
    *(
        Check(
            f"AdamW {name}, {str(dtype)[6:]}, gradients from 0 to the largest, unaligned",
            stepped(lambda params, pair=pair: ours(params, pair), dtype, extreme=True),
        )
        for name, pair in EXTREME.items()
        for dtype in (torch.float32, torch.bfloat16)
        if dtype == torch.float32 or name in ("8-bit", "4-bit preset")
    ),
    Check("quotients by scales of all mantissas", divided_by_scales),
    Check("quotients by roots of all mantissas", divided_by_roots),
    Check("quantiles", all_quantiles),
    Check("error metrics B256/DE@8s", all_metrics("B256/DE@8s"), SUMS),
)
