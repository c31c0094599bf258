"""Memory bandwidth, and the time of a step of AdamW in 32, 8 and 4 bits: measured here, on the CPU.

Both run on as many threads as torch uses. Numbers of a few seconds tell the order of magnitude;
``make bench`` measures carefully.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch

from qmaps.algebra.quantizer import quantizer
from qmaps.engines.backends import backend
from qmaps.errors import BackendWarning
from qmaps.optim.adamw import AdamW
from qmaps.optim.presets import PRESETS

ELEMENTS = 1 << 25
"""Elements of each float32 array whose transfer is timed, 128 MiB: more than most caches hold."""
SHAPE = (2048, 4096)
"""The parameter that is stepped: in 32 bits a step touches 128 MiB."""
SMALL = (512, 2048)
"""The same where the native engine does not run, and a step takes many times as long."""
WIDTHS = {"32 bits": "32bit", "8 bits": "8bit", "4 bits": "4bit"}
"""The presets that are measured, by the name that a report shows."""
FLOAT = 4
"""Bytes of a float32 number."""

Clock = Callable[[], float]


@dataclass(frozen=True)
class StepCost:
    """Cost of a step of AdamW with states of one width.

    Attributes:
        states: "32 bits", "8 bits" or "4 bits".
        specs: the quantizer of each state by its name; None means 32 bits.
        ns_per_parameter: nanoseconds, the median of the steps measured; None if none was.
        ns_of_memory: nanoseconds that the bytes of a step take to move at the measured bandwidth;
            None if it was not measured. A step cannot be faster, unless caches hold it all.
        state_bits_per_parameter: bits of both states, with their scales.
        milliseconds: of a step of the model that was asked about; None without one.
        state_nbytes: bytes of its states; None without one.
    """

    states: str
    specs: Mapping[str, str | None]
    ns_per_parameter: float | None
    ns_of_memory: float | None
    state_bits_per_parameter: float
    milliseconds: float | None
    state_nbytes: int | None


def bandwidth(seconds: float, clock: Clock = time.perf_counter) -> dict[str, float]:
    """Bytes per second, by kind of transfer: the best of several rounds.

    A byte counts each time that it is read or written. "copy" writes one array and reads another;
    "update" subtracts one from another, so that it writes what it has read, as optimizers do.

    Args:
        seconds: how long to measure, about; at least two rounds are measured.
        clock: seconds since any moment.
    """
    target = torch.full((ELEMENTS,), 1.0, dtype=torch.float32)
    source = torch.full((ELEMENTS,), 2.0, dtype=torch.float32)
    kinds: dict[str, tuple[int, Callable[[], object]]] = {
        "copy": (2, lambda: target.copy_(source)),
        "update": (3, lambda: target.sub_(source)),
    }
    best = dict.fromkeys(kinds, float("inf"))
    end = clock() + seconds
    rounds = 0
    while rounds < 2 or clock() < end:
        for kind, (_, move) in kinds.items():
            before = clock()
            move()
            best[kind] = min(best[kind], clock() - before)
        rounds += 1
    return {kind: times * FLOAT * ELEMENTS / best[kind] for kind, (times, _) in kinds.items()}


def matrix() -> tuple[int, int]:
    """The shape of the parameter that is stepped: such that some seconds are enough."""
    return SHAPE if backend() == "native" else SMALL


def step_times(
    shape: tuple[int, int], seconds: float, clock: Clock = time.perf_counter
) -> dict[str, float]:
    """Nanoseconds per parameter of a step of AdamW, by width: the median of several steps.

    Args:
        shape: of the parameter.
        seconds: how long to measure, about; at least one step of each width is measured.
        clock: seconds since any moment.
    """
    # Gradients far below the parameters, as in training: no value runs away.
    draw = torch.Generator().manual_seed(0)
    gradient = torch.randn(shape, generator=draw, dtype=torch.float32) * 1e-3
    optimizers = {}
    for width, preset in WIDTHS.items():
        parameter = torch.nn.Parameter(torch.full(shape, 0.1, dtype=torch.float32))
        parameter.grad = gradient
        optimizers[width] = AdamW([parameter], state_quantizers=preset)
    found: dict[str, list[float]] = {width: [] for width in WIDTHS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BackendWarning)  # a finding says it
        for optimizer in optimizers.values():
            optimizer.step()  # makes the states
        end = clock() + seconds
        while not all(found.values()) or clock() < end:
            for width, optimizer in optimizers.items():
                before = clock()
                optimizer.step()
                found[width].append(clock() - before)
    return {width: 1e9 * median(each) / gradient.numel() for width, each in found.items()}


def costs(
    times: Mapping[str, float], bytes_per_second: float | None, parameters: int | None
) -> list[StepCost]:
    """Cost of a step for each width.

    Args:
        times: nanoseconds per parameter by width, as `step_times` returns them; may be empty.
        bytes_per_second: the bandwidth of an update; None if it was not measured.
        parameters: number of parameters of a model; None without one.
    """
    rows = []
    for width, preset in WIDTHS.items():
        specs = AdamW.preset_specs(PRESETS[preset])
        bits = 8 * _nbytes(specs, SHAPE[0] * SHAPE[1]) / (SHAPE[0] * SHAPE[1])
        # Parameter and gradient are read, the parameter is written; states are read and written.
        moved = 3 * FLOAT + 2 * bits / 8
        ns = times.get(width)
        rows.append(
            StepCost(
                states=width,
                specs=specs,
                ns_per_parameter=ns,
                ns_of_memory=1e9 * moved / bytes_per_second if bytes_per_second else None,
                state_bits_per_parameter=bits,
                milliseconds=None if ns is None or parameters is None else ns * parameters / 1e6,
                state_nbytes=None if parameters is None else _nbytes(specs, parameters),
            )
        )
    return rows


def _nbytes(specs: Mapping[str, str | None], numel: int) -> int:
    """Bytes of states of so many elements."""
    return sum(
        FLOAT * numel if spec is None else quantizer(spec).nbytes((numel,))
        for spec in specs.values()
    )
