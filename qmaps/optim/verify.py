"""The check of a GPU: every kind of kernel against the reference, bit for bit, and speed."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qmaps import optim
from qmaps.algebra.quantizer import QuantizedTensor, quantizer
from qmaps.engines.triton import engine as triton
from qmaps.ops.backends import backends, use_backend
from qmaps.ops.proof import SWITCH, differing, driver, every_exponent
from qmaps.optim.base import QuantizedOptimizer
from qmaps.optim.rule import check_above_0, check_finite
from qmaps.storage import __version__

SIZES = (10**6, 10**7, 10**8, 2**28)
"""Elements of the parameters whose steps are timed on a GPU."""
CHECKING = 0.6
"""Share of the time for checks."""
QUANTIZERS = (
    "B256/DE-sym@8s", "B256/geometric@8u+qsr", "B64xbf16/mu-law10:linear0@4s+qsr",
    "B64xbf16/geometric@2u+qsr", "B128/DE@3s+sr", "B2048/DE@8u", "B32xe8m0/e2m1@4s",
    "B64xf16sq/linear@6u", "tensor/linear@4s", "B24/linear@7s+sr",
)  # fmt: skip
RULES: Sequence[tuple[str, dict[str, Any]]] = (
    ("AdamW", {}), ("Lion", {}), ("SGD", {"momentum": 0.9, "nesterov": True}), ("Adam", {}),
    ("RMSprop", {"momentum": 0.9, "centered": True}), ("Adagrad", {}), ("NAdam", {}),
    ("AdEMAMix", {}), ("Adan", {}), ("AdamWScheduleFree", {}),
)  # fmt: skip
FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Check:
    """One comparison with the reference.

    Attributes:
        engine: that was compared.
        what: the operation.
        elements: number of elements that were compared.
        problem: how results differ, or the error; empty if they are equal.
        left: number of parameters that the engine left to the reference.
    """

    engine: str
    what: str
    elements: int
    problem: str
    left: int = 0


@dataclass(frozen=True)
class Speed:
    """Milliseconds of a copy of float32, and of steps of AdamW, for this many elements."""

    elements: int
    milliseconds: dict[str, float]


@dataclass(frozen=True)
class Verification:
    """The result of `verify`; ``str`` is Markdown.

    Attributes:
        versions: of the software, the device and its driver.
        remark: what was not checked.
        checks: every comparison.
        speeds: times on a GPU; empty without one.
        seconds: that it all took.
    """

    versions: dict[str, str]
    remark: str
    checks: list[Check]
    speeds: list[Speed]
    seconds: float

    @property
    def equal(self) -> bool:
        """True if every comparison found equal bits."""
        return not any(check.problem for check in self.checks)

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    __repr__ = __str__


def verify(*, seconds: float = 150.0) -> Verification:
    """Compare the engines of this machine's GPU with the reference, bit for bit, and time steps.

    Without a GPU the Triton engine runs in Triton's interpreter, or else the native engine, on
    fewer and smaller tensors; nothing is timed. ``qmaps verify`` prints the result.

    Args:
        seconds: how long to check and to measure, about.

    Raises:
        BadValueError, BadTypeError: `seconds` is not above 0.
    """
    check_finite("seconds", seconds)
    check_above_0({"seconds": seconds}, "seconds")
    begin = time.monotonic()
    found = triton.devices()
    device = found[0] if found else torch.device("cpu")
    with _unchecked(), _interpreter(wanted=not found):
        engines, remark = _engines(device)
        checks: list[Check] = []
        left_out = 0
        for check in _checks(engines, device):
            if time.monotonic() - begin > CHECKING * seconds:
                left_out += 1
                continue
            checks.append(check())
        if left_out:
            remark += f" {left_out} checks were left out for lack of time."
        speeds = _speeds(device, begin + seconds) if found else []
        versions = _versions(device)
    return Verification(versions, remark.strip(), checks, speeds, time.monotonic() - begin)


def _engines(device: torch.device) -> tuple[list[str], str]:
    """The engines to check, and what is not checked."""
    known = {backend.name: backend for backend in backends()}
    if device.type != "cpu":
        names = [name for name in ("cuda", "triton") if known[name].available]
        missing = [
            f"{name}: {known[name].reason}." for name in ("cuda", "triton") if name not in names
        ]
        return names, " ".join(missing)
    if known["triton"].available:
        return [
            "triton"
        ], "No GPU was found: kernels ran in Triton's interpreter, and none was timed."
    why = f"No GPU was found, and no interpreter ({known['triton'].reason})"
    if known["native"].available:
        return ["native"], f"{why}: the native engine of the CPU was checked instead."
    return [], f"{why}: nothing could be checked."


@contextmanager
def _unchecked() -> Iterator[None]:
    """Do not compare small steps first; this does."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "0"
    try:
        yield
    finally:
        os.environ.pop(SWITCH)
        if before is not None:
            os.environ[SWITCH] = before


@contextmanager
def _interpreter(*, wanted: bool) -> Iterator[None]:
    """Turn on Triton's interpreter, unless Triton is already imported."""
    made = "triton" in sys.modules
    turn = wanted and not triton.interpreting() and not made and importlib.util.find_spec("triton")
    if turn:
        os.environ["TRITON_INTERPRET"] = "1"
    try:
        yield
    finally:
        if turn:
            os.environ.pop("TRITON_INTERPRET")


def _checks(engines: Sequence[str], device: torch.device) -> Iterator[Callable[[], Check]]:
    """Every check, the most telling ones first."""
    small = device.type == "cpu" and engines == ["triton"]
    for engine in engines:
        for preset in ("8bit", "4bit"):
            yield _step_check(engine, device, "AdamW", {}, preset, "float32", small)
        for spec in QUANTIZERS:
            yield _tensor_check(engine, device, spec, small)
        for dtype in ("bfloat16", "float16"):
            yield _step_check(engine, device, "AdamW", {}, "4bit", dtype, small)
        rounds = {"stochastic_rounding": True}
        yield _step_check(engine, device, "AdamW", rounds, "8bit", "bfloat16", small)
        masters = {"master_weights": True}
        yield _step_check(engine, device, "AdamW", masters, "8bit", "bfloat16", small)
        for rule, options in RULES[1:]:
            yield _step_check(engine, device, rule, options, "8bit", "float32", small)
        for preset in ("32bit", "3bit", "2bit", "paper-8bit", "paper-4bit"):
            yield _step_check(engine, device, "AdamW", {}, preset, "float32", small)


def _step_check(
    engine: str,
    device: torch.device,
    rule: str,
    options: dict[str, Any],
    preset: str,
    dtype: str,
    small: bool,
) -> Callable[[], Check]:
    """Steps of an optimizer with whole and ragged tiles, aligned or not."""
    words = [rule, preset, dtype, *(key for key, value in options.items() if value is True)]
    sizes = (1024, 301, 5) if small else (16384, 2048 + 301, 700, 5, 1)

    def check() -> Check:
        given = {"lr": 1e-2, "state_quantizers": preset, "min_quantized_size": 0, **options}
        expected = _trained("reference", torch.device("cpu"), rule, given, FLOATS[dtype], sizes)
        try:
            found = _trained(engine, device, rule, given, FLOATS[dtype], sizes)
        except Exception as error:
            return Check(engine, ", ".join(words), sum(sizes), triton.first_line(error))
        left = found[1].engine_counts().get("reference", 0)
        problem = _differences(expected[0], found[0])
        return Check(engine, ", ".join(words), sum(sizes), problem, left)

    return check


def _trained(
    engine: str,
    device: torch.device,
    rule: str,
    options: dict[str, Any],
    dtype: torch.dtype,
    sizes: Sequence[int],
) -> tuple[dict[str, Tensor], QuantizedOptimizer]:
    """Parameters and states after steps, by name; and the optimizer."""
    params = []
    for number, size in enumerate(sizes):
        # Some parameters do not begin at a multiple of 16 bytes.
        memory = torch.zeros(size + number % 2, dtype=dtype, device=device)
        values = every_exponent(size, 3 * number).clamp(-1e4, 1e4)
        param = memory[number % 2 :].copy_(values)
        params.append(torch.nn.Parameter(param))
    optimizer: QuantizedOptimizer = getattr(optim, rule)(params, **options)
    with use_backend(engine):
        for step in range(3):
            for number, param in enumerate(params):
                gradient = every_exponent(param.numel(), 100 + 10 * step + number)
                if number == 0:
                    gradient = torch.zeros_like(gradient) if step == 2 else gradient * 1e-3
                param.grad = gradient.clamp(-1e30, 1e30).to(dtype).to(device)
            optimizer.step()
    found = {}
    for number, param in enumerate(params):
        found[f"parameter {number}"] = param.detach()
        for name, value in optimizer.state[param].items():
            parts = [value.packed, *value.scales] if isinstance(value, QuantizedTensor) else [value]
            for place, part in enumerate(parts):
                found[f"{name} {place} of parameter {number}"] = part
    return found, optimizer


def _tensor_check(engine: str, device: torch.device, spec: str, small: bool) -> Callable[[], Check]:
    """A quantizer, and decoding, on tensors of ragged sizes."""
    sizes = (2048, 1030, 7) if small else (65536, 3 * 1024 + 77, 2048, 7, 1)

    def check() -> Check:
        q = quantizer(spec)
        problems = []
        try:
            for size in sizes:
                x = (
                    every_exponent(size, size).abs()
                    if not q.map.signed
                    else every_exponent(size, size)
                )
                results = []
                for name, place in (("reference", torch.device("cpu")), (engine, device)):
                    with use_backend(name):
                        t = q.quantize(x.to(place))
                        results.append(
                            {"codes": t.packed, "scales": t.scales[0], "values": t.dequantize()}
                        )
                problems.append(_differences(*results))
        except Exception as error:
            problems.append(triton.first_line(error))
        return Check(
            engine, f"quantize, dequantize {spec}", sum(sizes), next(filter(None, problems), "")
        )

    return check


def _differences(expected: dict[str, Tensor], found: dict[str, Tensor]) -> str:
    if expected.keys() != found.keys():
        return "other states"
    for name, one in expected.items():
        if count := differing(one.cpu(), found[name].cpu()):
            return f"{count} of {one.numel()} elements of {name} differ"
    return ""


def _speeds(device: torch.device, end: float) -> list[Speed]:
    """Times of a copy, of torch's fused AdamW, and of ours, as far as memory and time allow."""
    module = torch.get_device_module(device)
    total = module.get_device_properties(device).total_memory
    speeds = []
    for size in SIZES:
        # A parameter, a gradient, and two moments in float32, with as much to spare.
        if 32 * size > total or time.monotonic() > end:
            break
        x, y = (torch.zeros(size, dtype=torch.float32, device=device) for _ in range(2))
        times = {"copy": _time(lambda x=x, y=y: y.copy_(x), module)}  # type: ignore[misc]
        del x, y
        for name in ("torch fused", "8bit", "4bit"):
            param = torch.nn.Parameter(torch.zeros(size, dtype=torch.float32, device=device))
            param.grad = torch.full_like(param, 1e-3)
            try:
                optimizer: Any = (
                    torch.optim.AdamW([param], fused=True)
                    if name == "torch fused"
                    else optim.AdamW([param], state_quantizers=name)
                )
                times[name] = _time(optimizer.step, module)
            except (RuntimeError, ValueError):  # of memory, or without a fused step
                continue
        speeds.append(Speed(size, times))
    return speeds


def _time(call: Callable[[], Any], module: Any) -> float:
    """Milliseconds of a call: the least of several runs of a few calls."""
    for _ in range(3):
        call()
    best = float("inf")
    for _ in range(5):
        module.synchronize()
        begin = time.perf_counter()
        for _ in range(5):
            call()
        module.synchronize()
        best = min(best, (time.perf_counter() - begin) / 5)
    return 1e3 * best


def _versions(device: torch.device) -> dict[str, str]:
    found = {
        "qmaps": __version__,
        "torch": str(torch.__version__),
        "Python": platform.python_version(),
    }
    if importlib.util.find_spec("triton") is not None and not triton.unusable():
        found["triton"] = triton.version()
    name = "none" if device.type == "cpu" else triton.name_of(device)
    return {**found, "GPU": name, "driver": driver(device) or "none", "system": platform.platform()}


def _lines(report: Verification) -> Iterator[str]:
    bad = sum(bool(check.problem) for check in report.checks)
    yield "## qmaps verify"
    yield ""
    result = (
        f"{bad} of {len(report.checks)} checks found other bits"
        if bad
        else (
            f"equal bits in all of {len(report.checks)} checks"
            if report.checks
            else "nothing checked"
        )
    )
    yield f"**{result}**, in {report.seconds:.0f} s. {report.remark}".strip()
    yield ""
    yield from ("| | |", "| --- | --- |")
    yield from (f"| {name} | {version} |" for name, version in report.versions.items())
    yield ""
    yield from ("| engine | check | elements | result |", "| --- | --- | --- | --- |")
    for check in report.checks:
        left = f"equal; {check.left} parameters left to the reference" if check.left else "equal"
        yield f"| {check.engine} | {check.what} | {check.elements} | {check.problem or left} |"
    if report.speeds:
        yield ""
        names = list(report.speeds[0].milliseconds)
        yield f"| elements | {' | '.join(f'{name}, ms' for name in names)} | copy, GB/s |"
        yield f"| --- | {' | '.join('---' for _ in names)} | --- |"
        for speed in report.speeds:
            cells = [
                f"{speed.milliseconds[name]:.3f}" if name in speed.milliseconds else ""
                for name in names
            ]
            rate = 8 * speed.elements / speed.milliseconds["copy"] / 1e6
            yield f"| {speed.elements} | {' | '.join(cells)} | {rate:.0f} |"
