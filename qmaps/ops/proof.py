"""The first use of a GPU: small steps of an engine are compared with the reference.

Where a bit differs, or the engine fails, the reference runs on that device, and one warning says
so. A success is recorded in the user's cache folder, for this engine, device, and all versions.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import QuantizedTensor, quantizer
from qmaps.cuda.compiler import cache_folder, source_digest
from qmaps.cuda.engine import engine_of
from qmaps.cuda.plan import CudaSteps
from qmaps.engines.reference_plan import ReferencePlan
from qmaps.engines.step import Inputs, ParameterStep, Rule, StateStep, StepEngine
from qmaps.engines.step_scalars import Corrected, RootCorrection, StepScalar
from qmaps.engines.triton import engine as triton
from qmaps.engines.triton.plan import TritonSteps
from qmaps.errors import BackendWarning, BadValueError, OutputError, shown
from qmaps.float32 import sqrt
from qmaps.storage import __version__
from qmaps.storage.files import read_record, write_record

SWITCH = "QMAPS_CHECK_DEVICES"
"""The environment variable that switches this off."""
SPECS = (
    ("B256/DE-sym@8s", "B256/geometric@8u+qsr", torch.float32),
    ("B64xbf16/mu-law10:linear0@5s+qsr", "B64xbf16/geometric@3u+qsr", torch.float32),
    ("B64xbf16/mu-law10:linear0@4s+qsr", "B64xbf16/geometric@4u+qsr", torch.bfloat16),
    ("B128/DE@4s+sr", "B128/DE-0@4u", torch.float32),
)
"""Quantizers of both moments, those of `8bit` and `4bit` among them, and the dtype of the
parameter, which is rounded stochastically if it is bfloat16."""
NUMEL, STEPS = 1500, 2


PROVEN: dict[tuple[str, torch.device], bool] = {}
"""Results of this process, by engine and device."""


def trusted(name: str, device: torch.device) -> bool:
    """Return True if an engine gives the reference's bits on a device, "cuda" or "triton".

    An engine is also trusted while the check is switched off, and while a graph is recorded, in
    which nothing can be compared; later uses compare it.
    """
    if PROVEN.get((name, device)) or not checks():
        return True
    if (name, device) not in PROVEN:
        if triton.capturing(device):
            return True
        PROVEN[name, device] = _proven(name, device)
    return PROVEN[name, device]


def _proven(name: str, device: torch.device) -> bool:
    record = cache_folder().parent / "devices" / f"{_digest(name, device)}.json"
    if _recorded(record):
        return True
    try:
        engine = _steps(name, device)
        difference = next(differences(engine, device), "")
    except Exception as error:
        difference = triton.first_line(error)
    if difference:
        warnings.warn(
            f"the engine {name!r} does not give the reference's results on "
            f"{triton.name_of(device)}: {difference}. The reference runs there, which is slower. "
            f"Please run `qmaps verify` and report its output; {SWITCH}=0 skips this check",
            BackendWarning,
            stacklevel=2,
        )
        return False
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        write_record(record, {"engine": name, "device": triton.name_of(device), "equal": True})
    except (OSError, OutputError):
        pass  # without a record, the next process compares again
    return True


def checks() -> bool:
    """Return True unless the environment switches the check off."""
    value = os.environ.get(SWITCH, "1") or "1"
    if value not in ("0", "1"):
        raise BadValueError(f"{SWITCH}={shown(value)} must be 0 or 1")
    return value == "1"


def differences(engine: StepEngine, device: torch.device) -> Iterator[str]:
    """Differences between an engine's steps and the reference's, as phrases."""
    for first, second, dtype in SPECS:
        expected = _trained(None, torch.device("cpu"), first, second, dtype)
        found = _trained(engine, device, first, second, dtype)
        for name, one in expected.items():
            count = differing(one, found[name].cpu())
            if count:
                yield f"{count} of {one.numel()} elements of {name} differ ({first} + {second})"


def differing(one: Tensor, other: Tensor) -> int:
    """Number of elements with other bits; NaN is NaN, whatever its payload."""
    if one.dtype.is_floating_point:
        both = one.isnan() & other.isnan()
        kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
        return int(((one.view(kind) != other.view(kind)) & ~both).sum())
    return int((one != other).sum())


def every_exponent(numel: int, seed: int) -> Tensor:
    """Finite float32 numbers of all exponents and signs, with zeros and subnormal numbers."""
    bits = (torch.arange(numel, dtype=torch.int64) + 1) * 0x9E3779B1 + seed * 0x85EBCA6B
    numbers = (bits & 0xFFFFFFFF).to(torch.int64)
    numbers = torch.where(numbers >= 1 << 31, numbers - (1 << 32), numbers).to(torch.int32)
    x = numbers.view(torch.float32)
    x = torch.where(x.isfinite(), x, 0.0)
    # Whole blocks of ordinary numbers, too, and of numbers that are equal or zero.
    index = torch.arange(numel)
    ordinary = (numbers.float() * 2.0**-31).ldexp(-(index // 256 % 8))
    x = torch.where(index // 256 % 2 == 0, ordinary, x)
    return torch.where(index % 7 == 0, 0.0, torch.where(index % 11 == 0, 2.0**-5, x))


def _trained(
    engine: StepEngine | None, device: torch.device, first: str, second: str, dtype: torch.dtype
) -> dict[str, Tensor]:
    """A parameter and its states after a few steps of AdamW; without an engine the reference's."""
    param = every_exponent(NUMEL, 1).clamp(-1e30, 1e30).to(dtype).to(device)
    storage: dict[str, Any] = {}
    rounds = RoundingKey(purpose=1) if dtype == torch.bfloat16 else None
    states = tuple(
        StateStep(name, tuple(param.shape), q, RoundingKey(state=number))
        for number, (name, q) in enumerate(
            [("exp_avg", quantizer(first)), ("exp_avg_sq", quantizer(second))]
        )
    )
    rule = Rule("adamw", takes_norms=False, apply=_adamw, step_scalars=lambda _: SCALARS)
    for step in range(STEPS):
        gradient = every_exponent(NUMEL, 2 + step).to(device)
        parameter = ParameterStep(
            number=0, label="", param=param, codes=None, gradient=gradient, states=states,
            storage=storage, group=0, options={}, refit_every=1, skips=False, key=rounds,
            master=False, remainder=None, shard=None,
        )  # fmt: skip
        if engine is None:
            ReferencePlan(rule, [parameter]).run(Inputs([SCALARS]))
            continue
        if reason := engine.unsupported_reason(rule, parameter):
            raise AssertionError(reason)
        engine.plan(rule, [parameter]).run(Inputs([SCALARS]))
    found = {"the parameter": param}
    for name, value in storage.items():
        if isinstance(value, QuantizedTensor):
            found[f"codes of {name}"] = value.packed
            found[f"scales of {name}"] = value.scales[0]
    return found


SCALARS: Mapping[str, float | StepScalar] = {
    "decay": 0.999, "beta1": 0.9, "beta2": 0.99, "step_size": Corrected(0.01, 0.9),
    "root_correction": RootCorrection(0.0, 0.99), "eps": 1e-8, "sign": -1.0, "rest1": 0.1,
    "rest2": 0.01,
}  # fmt: skip


def _adamw(
    context: object, param: Tensor, grad: Tensor, states: dict[str, Tensor], s: dict[str, float]
) -> None:
    """The rule of `qmaps.optim.AdamW`, which this layer does not know."""
    del context
    m, v = states["exp_avg"], states["exp_avg_sq"]
    param.mul_(s["decay"])
    grad = grad * s["sign"]
    m.mul_(s["beta1"]).add_(grad * s["rest1"])
    v.mul_(s["beta2"]).add_((grad * grad) * s["rest2"]).clamp_(max=2.0**126)
    denominator = sqrt(v).div_(v.new_full((), s["root_correction"])).add_(s["eps"])
    param.sub_((m / denominator).mul_(s["step_size"]))


def _steps(name: str, device: torch.device) -> StepEngine:
    if name == "triton":
        return TritonSteps(device)
    engine = engine_of(device)
    assert engine is not None  # as it is about to run
    return CudaSteps(engine)


def _recorded(path: Path) -> bool:
    try:
        return read_record(path).get("equal") is True
    except ValueError:
        return False


def _digest(name: str, device: torch.device) -> str:
    """What the check depends on: the engine's sources, the device, and versions."""
    sources = source_digest()
    if name == "triton":
        files = sorted(Path(triton.__file__).parent.glob("*.py"))
        sources = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    made = triton.version() if name == "triton" else torch.version.cuda
    parts = [
        name,
        sources,
        triton.name_of(device),
        driver(device),
        torch.__version__,
        made,
        __version__,
    ]
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


def driver(device: torch.device) -> str:
    """The version of a device's driver, as far as torch knows it."""
    if device.type == "cuda" and torch.version.hip is None:
        number: int = vars(torch._C)["_cuda_getDriverVersion"]()
        return f"CUDA {number // 1000}.{number % 1000 // 10}"
    properties = (
        torch.get_device_module(device).get_device_properties(device)
        if (device.type != "cpu")
        else None
    )
    return str(getattr(properties, "driver_version", torch.version.hip or ""))
