"""Paddle: pickles of an optimizer's state_dict, of which only arrays and numbers are read."""

from __future__ import annotations

import pickle
import re
import struct
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from qmaps.capture.readers.base import TRANSPOSED, Reader, StateDict, in_file
from qmaps.capture.snapshot import Lazy
from qmaps.errors import CaptureError, shown
from qmaps.storage import kinds
from qmaps.storage.files import exists, size_of
from qmaps.storage.pickles import BoundedUnpickler

STATES = {
    "moment1": "exp_avg",
    "moment2": "exp_avg_sq",
    "moment2_max": "max_exp_avg_sq",
    "velocity": "momentum_buffer",
    "mean_square": "square_avg",
    "mean_grad": "grad_avg",
    "momentum": "momentum",  # of RMSProp: of updates, with the learning rate
    "inf_norm": "exp_inf",
    "moment": "sum",
    "beta1_pow_acc": "beta1_pow",
    "beta2_pow_acc": "beta2_pow",
}
"""States in Paddle's names, and torch's."""

KEY = re.compile(rf"(.+?)(?:_fp32_master_\d+)?_({'|'.join(STATES)})_\d+")
"""Parameter and state; those of parameters in 16 bits are of their copies in float32."""

STRUCTURED = "StructuredToParameterName@@"
"""Key of the names in the model, in a file of the model."""

REST = frozenset({"LR_Scheduler", "master_weights", STRUCTURED})
"""Keys that are no states."""

DTYPES = {
    "f2": torch.float16,
    "f4": torch.float32,
    "f8": torch.float64,
    "u2": torch.bfloat16,  # which NumPy does not have
    "i4": torch.int32,
    "i8": torch.int64,
}
"""Dtypes by NumPy's names."""

USUAL = (0.9, 0.999)
"""Betas of Paddle's optimizers."""

LONGEST = 2**18
"""Powers of a beta that are compared; those of 0.999 stop changing earlier."""

LARGE = 2**16
"""Bytes of an array from which on it stays in the file; pickle writes these outside frames."""


class Paddle(Reader):
    """A ``.pdopt`` file of ``paddle.save(optimizer.state_dict(), ...)``.

    Parameters have their names in the model if its ``.pdparams`` file is beside. Paddle keeps the
    powers of the betas of the next step instead of the number of steps.
    """

    name: ClassVar[str] = "paddle"
    writable: ClassVar[bool] = False
    note: ClassVar[str] = TRANSPOSED

    def is_here(self, path: Path) -> bool:
        """Return True for a file whose name ends with ``.pdopt``."""
        return path.suffix == ".pdopt" and path.is_file()

    def newest(self, path: Path) -> Path | None:
        """Return the only file of this kind in a folder."""
        files = [*path.glob("*.pdopt")] if path.is_dir() else []
        return files[0] if len(files) == 1 else None

    def state_dicts(self, path: Path) -> list[StateDict]:
        """See `Reader.state_dicts`."""
        saved = _loaded(path)
        model = path.with_suffix(".pdparams")
        structured = _loaded(model).get(STRUCTURED, {}) if exists(model) else {}
        names = {own: name for name, own in structured.items()}
        state: dict[str, dict[str, Any]] = {}
        for key, value in saved.items():
            if key in REST:
                continue
            match = KEY.fullmatch(str(key))
            if match is None or not isinstance(value, Array):
                raise CaptureError(
                    f"{str(path)!r} has {shown(key)}; the states of Paddle that are read are "
                    f"PARAMETER_{', PARAMETER_'.join(STATES)}"
                )
            name = names.get(str(match[1]), str(match[1]))
            state.setdefault(name, {})[STATES[match[2]]] = value.lazy(path)
        for members in state.values():
            if "exp_inf" in members and "sum" in members:  # Adamax
                members["exp_avg"] = members.pop("sum")
        group: dict[str, Any] = {"params": list(state)}
        rate = saved.get("LR_Scheduler", {}).get("last_lr")
        if isinstance(rate, float):
            group["lr"] = rate
        return [{"state": state, "param_groups": [group]}]

    def counted(self, state_dict: StateDict, path: Path) -> StateDict:
        """Return a state_dict with the number of steps in place of the powers of the betas."""
        (group,) = state_dict["param_groups"]
        betas = group.get("betas")
        for members in state_dict["state"].values():
            powers = [members.pop(f"beta{n}_pow") for n in (1, 2) if f"beta{n}_pow" in members]
            if powers:
                members["step"] = _steps(tuple(map(_value, powers)), betas, path)
        return state_dict


def _value(power: Lazy) -> float:
    if power.shape not in ((), (1,)):
        raise ValueError(f"a power of shape {power.shape}")
    return float(power.read().item())


@cache
def _steps(powers: tuple[float, ...], betas: tuple[float, float] | None, path: Path) -> int:
    """The number of steps after which the next powers of the betas are these."""
    chosen = betas or USUAL
    decisive, beta = powers[-1], chosen[len(powers) - 1]
    # In float32, one product after the other.
    series = np.multiply.accumulate(np.full(LONGEST, beta, np.float32))
    equal = np.flatnonzero(series == np.float32(decisive))
    if betas and not equal.size:  # a device may compute them in another way
        nearest = int(np.abs(series - decisive).argmin())
        close = abs(series[nearest] - decisive) <= (1 - beta) / 2 * decisive
        equal = np.array([nearest] if close else [], int)
    first = np.float32(chosen[0]) ** (equal[:1] + 1.0)
    if not equal.size or not np.isclose(first, powers[0], rtol=1e-3, atol=1e-37).all():
        raise CaptureError(
            f"{str(path)!r} has {decisive} as the next power of a beta, which is none of "
            f"betas={chosen}; give the optimizer's betas (--betas)"
        )
    if equal.size > 1:
        warnings.warn(
            f"{str(path)!r} has taken {equal[0]} steps or more: powers of betas, by which Paddle "
            "counts, change no longer",
            stacklevel=2,
        )
    return int(equal[0])


def _loaded(path: Path) -> Mapping[Any, Any]:
    with path.open("rb") as file:
        try:
            saved = _Unpickler(Whole(file, size_of(path)), path).load()
        except CaptureError:
            raise
        except Exception as error:  # pickle raises many kinds on damaged files
            raise CaptureError(
                kinds.refusal(path)
                or f"{str(path)!r} is no pickle as Paddle writes it "
                f"({type(error).__name__}: {error})"
            ) from None
    if not isinstance(saved, Mapping):
        raise CaptureError(f"{str(path)!r} must hold a dict, as Paddle writes it")
    return saved


class Whole:
    """A file that reads no more than it has, whatever length it is asked for."""

    def __init__(self, file: Any, size: int) -> None:
        self.file = file
        self.size = size
        self.readline, self.tell = file.readline, file.tell

    def read(self, length: int) -> bytes:
        """Read `length` bytes, or those that are left."""
        content: bytes = self.file.read(min(length, self.size - self.tell()))
        return content

    def skip(self, length: int) -> None:
        """Leave out `length` bytes; an EOFError if there are fewer."""
        if length > self.size - self.tell():
            raise EOFError("the file ends early")
        self.file.seek(length, 1)


@dataclass(frozen=True)
class _Bytes:
    """Bytes that were not read."""

    offset: int
    length: int


@dataclass
class Dtype:
    """NumPy's dtype in a pickle."""

    name: str = ""
    order: str = ""

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]


@dataclass
class Array:
    """NumPy's array in a pickle; its elements may be left in the file."""

    shape: tuple[int, ...] = ()
    dtype: Dtype = field(default_factory=Dtype)
    content: bytes | _Bytes = b""

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.dtype, is_fortran, self.content = state
        if is_fortran and len(self.shape) > 1:
            raise ValueError("an array in Fortran's order")

    def lazy(self, path: Path) -> Lazy:
        """The array as a tensor; a ValueError if its parts do not fit together."""
        if self.dtype.order not in ("<", "|") or self.dtype.name not in DTYPES:
            raise ValueError(f"an array of dtype {self.dtype.order}{self.dtype.name}")
        dtype, shape = DTYPES[self.dtype.name], tuple(map(int, self.shape))
        if isinstance(self.content, _Bytes):
            return in_file(path, self.content.offset, self.content.length, dtype, shape)
        flat = torch.from_numpy(np.frombuffer(self.content, np.uint8).copy()).view(dtype)
        return Lazy.of(flat.view(shape))


def _array(*_: Any) -> Array:
    return Array()


def _dtype(name: str, *_: Any) -> Dtype:
    return Dtype(name)


def _scalar(dtype: Dtype, content: bytes) -> Any:
    array = Array((), dtype, content)
    return array.lazy(Path()).read().item()


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ValueError(f"text in {encoding}")
    return text.encode("latin1")  # bytes, as protocol 2 writes them


PLAIN: Mapping[str, Callable[..., Any]] = {
    **{f"numpy.{core}.multiarray._reconstruct": _array for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.scalar": _scalar for core in ("core", "_core")},
    "numpy.ndarray": Array,
    "numpy.dtype": _dtype,
    "_codecs.encode": _encode,
    "collections.OrderedDict": OrderedDict,
}
"""Names in a pickle, and what stands in for them; nothing of NumPy's is called."""


def _left(form: str) -> Callable[[Any], None]:
    """Load bytes, or leave large ones in the file."""

    def load(unpickler: Any) -> None:
        (length,) = struct.unpack(form, unpickler.read(struct.calcsize(form)))
        if length >= LARGE and unpickler._unframer.current_frame is None:
            unpickler.append(_Bytes(unpickler.whole.tell(), length))
            unpickler.whole.skip(length)
        else:
            unpickler.append(unpickler.read(length))

    return load


class _Unpickler(BoundedUnpickler):
    dispatch = {  # noqa: RUF012
        **BoundedUnpickler.dispatch,
        ord(pickle.BINBYTES): _left("<I"),
        ord(pickle.BINBYTES8): _left("<Q"),
    }

    def __init__(self, whole: Any, path: Path) -> None:
        super().__init__(whole)
        self.whole = whole
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        if (full := f"{module}.{name}") not in PLAIN:
            raise CaptureError(
                f"{str(self.path)!r} would have to run code to load ({full}); only arrays and "
                "numbers are read"
            )
        return PLAIN[full]
