"""Checks that the engine on the device gives the bits of the reference there, and of the CPU."""

from __future__ import annotations

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
from qmaps.ops.backends import cuda_engine, use_backend
from qmaps.optim import AdamW8bit

Row = dict[str, Any]
Answers = dict[str, Tensor]
Answer = Callable[[torch.device, int], Answers]

WIDTH = 515
"""Of the matrix that is quantized: no multiple of anything."""
ROWS, DRY_ROWS = 4591, 67
"""Of that matrix: more elements than a large device takes at once."""
SHAPES = ((96, 128), (257, 129), (5000,), (7,))
SUMS = 1e-9
"""Metrics may differ in the order of their sums, in float64; all else has to be equal."""
STEPS = 3


@dataclass(frozen=True)
class Check:
    """Answers of one kind, computed three times.

    Attributes:
        name: what is computed.
        answers: given a device and a number of rows, what comes out there, by name.
        tolerance: relative, 0 for equal bits.
    """

    name: str
    answers: Answer
    tolerance: float = 0.0

    def measure(self, place: Place) -> Row:
        """A line of the report: what differs from which of both."""
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
    """Check that there is an engine for the device.

    Attributes:
        name: what is looked for.
    """

    name: str

    def measure(self, place: Place) -> Row:
        """A line of the report."""
        missing = place.on_gpu and cuda_engine(torch.empty(1, device=place.device)) is None
        reason = next(backend.reason for backend in qmaps.backends() if backend.name == "cuda")
        wrong = [f"there is none, all is done by the reference: {reason}"] if missing else []
        return {"name": self.name, "compared": [], "wrong": wrong, "failed": missing}


def differing(a: Tensor, b: Tensor, tolerance: float) -> int:
    """Number of elements that differ; all if the tensors do not match."""
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
    make: Callable[[list[Tensor]], torch.optim.Optimizer], dtype: torch.dtype = torch.float32
) -> Answer:
    """Parameters and states after some steps."""

    def answers(device: torch.device, rows: int) -> Answers:
        draw = generator(4)
        params = [
            torch.randn(shape, generator=draw).to(dtype).to(device)
            for shape in (*SHAPES, (rows, WIDTH))
        ]
        optimizer = make(params)
        for _ in range(STEPS):
            for p in params:
                p.grad = (1e-3 * torch.randn(p.shape, generator=draw)).to(dtype).to(device)
            optimizer.step()
        tensors = {f"parameter {number}": p for number, p in enumerate(params)}
        for number, p in enumerate(params):
            for name, state in optimizer.state[p].items():
                tensors |= _parts(f"{name} {number}", state)
        return tensors

    return answers


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
    Check("quantiles", all_quantiles),
    Check("error metrics B256/DE@8s", all_metrics("B256/DE@8s"), SUMS),
)
