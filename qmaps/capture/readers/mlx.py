"""MLX: safetensors files of an optimizer's ``state``, flattened."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from qmaps.capture import snapshot
from qmaps.capture.readers.base import Reader, StateDict, decimal
from qmaps.capture.snapshot import Lazy, Parts
from qmaps.errors import CaptureError, shown

STEP = re.compile(r"((?:states\.\d+\.)*)step")
"""Number of steps of an optimizer, or of one in a ``MultiOptimizer``."""

NAMES: tuple[Mapping[str, str], ...] = (
    {"m": "exp_avg", "v": "exp_avg_sq"},  # Adam and AdamW
    {"v": "square_avg", "u": "acc_delta"},  # AdaDelta
    {"m": "exp_avg"},  # Lion
    {"v": "momentum_buffer"},  # Muon and SGD; `SQUARES` if no element is negative
    {name: name for name in ("exp_avg", "exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col")},
)
"""States of an optimizer's parameters, and torch's names; the first with all of them is taken."""

SQUARES = {"v": "square_avg"}
"""RMSprop and Adagrad, whose averages are of squares."""

SAMPLE = 2**16
"""Elements of a state that are looked at for a negative one, at most."""


class Mlx(Reader):
    """A file of ``mx.save_safetensors(file, dict(tree_flatten(optimizer.state)))``."""

    name: ClassVar[str] = "mlx"
    writable: ClassVar[bool] = False
    note: ClassVar[str] = "kernels of convolutions have their channels last, and torch's second"

    def is_here(self, path: Path) -> bool:
        """Return True for a safetensors file with a 64-bit unsigned ``step``."""
        if path.suffix != ".safetensors" or not path.is_file():
            return False
        try:
            metadata, tensors = snapshot.header_of(path)
        except CaptureError:  # what is wrong with it is said where our own are read
            return False
        return snapshot.KEY not in metadata and bool(_steps(tensors))

    def newest(self, path: Path) -> Path | None:
        """Return the only file of this kind in a folder."""
        files = path.glob("*.safetensors") if path.is_dir() else ()
        here = [file for file in files if self.is_here(file)]
        return here[0] if len(here) == 1 else None

    def state_dicts(self, path: Path) -> list[StateDict]:
        """See `Reader.state_dicts`."""
        tensors = snapshot.header_of(path)[1]
        state: dict[str, dict[str, Any]] = {}
        groups = []
        for prefix, step in _steps(tensors).items():
            own = {
                key.removeprefix(prefix): parts
                for key, parts in tensors.items()
                if key.startswith(prefix) and key != f"{prefix}step"
            }
            rate = own.pop("learning_rate", None)
            states = dict(_states(own, path))
            for name, members in states.items():
                if not state.setdefault(name, members | {"step": step}).items() >= members.items():
                    raise CaptureError(f"{str(path)!r} has states of {shown(name)} twice")
            options = {} if rate is None else {"lr": decimal(rate.whole().item())}
            groups.append({**options, "params": list(states)})
        return [{"state": state, "param_groups": groups}]


def _steps(tensors: Mapping[str, Parts]) -> dict[str, int]:
    """The number of steps of each optimizer, by the prefix of its keys."""
    return {
        match[1]: int.from_bytes(parts.bytes(0, 8).numpy().tobytes(), "little")
        for key, parts in tensors.items()
        if (match := STEP.fullmatch(key)) and (parts.code, parts.shape) == ("U64", ())
    }


def _states(tensors: Mapping[str, Parts], path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    by_name: dict[str, dict[str, Lazy]] = {}
    for key, parts in tensors.items():
        parameter, _, state = key.rpartition(".")
        if parts.code not in snapshot.DTYPES.values():
            raise CaptureError(f"{str(path)!r} has {shown(key)} in {parts.code}, which is not read")
        by_name.setdefault(parameter, {})[state] = parts.lazy()
    held = {state for members in by_name.values() for state in members}
    names = next((n for n in NAMES if held == n.keys() or held <= n.keys() & n.values()), None)
    if names is None or "" in by_name:
        raise CaptureError(
            f"{str(path)!r} has {shown(min(tensors))}; the states of MLX that are read are "
            f"PARAMETER.{', PARAMETER.'.join(sorted({n for known in NAMES for n in known}))}"
        )
    if held == {"v"} and not any(_is_signed(members["v"]) for members in by_name.values()):
        names = SQUARES
    for parameter, members in by_name.items():
        yield parameter, {names[state]: lazy for state, lazy in members.items()}


def _is_signed(lazy: Lazy) -> bool:
    numel = lazy.nbytes // lazy.dtype.itemsize
    return bool((lazy.opened()(0, min(numel, SAMPLE)) < 0).any())
