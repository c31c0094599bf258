"""DeepSpeed's universal checkpoints: a folder for each parameter, a file for each of its states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from qmaps.capture.readers.base import Reader, StateDict, in_place, missing_state, step_of
from qmaps.capture.readers.zero import load_file, model_of, shapes_of, with_names
from qmaps.capture.snapshot import Lazy
from qmaps.errors import DAMAGE, BadValueError, CaptureError
from qmaps.storage import checkpoint
from qmaps.storage.files import exists

OPTIMIZER = "optimizer_state.pt"
WEIGHTS = "fp32"
"""The parameter itself, which lies with its states."""

STEP = "step"


class Universal(Reader):
    """Folder of DeepSpeed's ``ds_to_universal``, for any number of ranks.

    Groups are those of ``optimizer_state.pt``; their parameters are in the model's file in the same
    folder; without it all are in one group. Made of ZeRO 3,
    states are flat and take their shapes from there, too.
    """

    name: ClassVar[str] = "deepspeed-universal"
    latest: ClassVar[str] = "latest_universal"

    def is_here(self, path: Path) -> bool:
        """Return True for a folder with the file ``zero/optimizer_state.pt``."""
        return exists(path / "zero" / OPTIMIZER)

    def edited(self, path: Path) -> list[Path]:
        """The files of the states; not those of the parameters themselves."""
        files = sorted((path / "zero").rglob("*.pt"))
        return [file for file in files if file.name != f"{WEIGHTS}.pt"]

    def state_dicts(self, path: Path) -> list[StateDict]:
        """See `Reader.state_dicts`."""
        zero = path / "zero"
        optimizer_file = zero / OPTIMIZER
        try:
            common = load_file(optimizer_file)
            groups = [dict(group) for group in common["param_groups"]]
            step = _step(common)
        except BadValueError:
            raise
        except DAMAGE:
            raise CaptureError(
                f"{str(optimizer_file)!r} must have param_groups, the groups of the optimizer"
            ) from None
        shapes = shapes_of(*model_of(path)) if any(path.glob("*model_states.pt")) else []
        model_shapes = {name: shape for group in shapes for name, shape in group.items()}
        state: dict[str, dict[str, Any]] = {}
        for place in sorted({file.parent for file in zero.rglob("*.pt")} - {zero}):
            name = place.relative_to(zero).as_posix()  # which may have slashes
            state[name] = _states(place, model_shapes.get(name))
            if state[name] and step is not None:
                state[name].setdefault(STEP, step)
        if missing := [name for name in model_shapes if name not in state]:
            raise CaptureError(
                f"{str(zero / missing[0])!r} does not exist; the model's file has "
                "a parameter of this name"
            )
        flats = [flat for group in groups for flat in group["params"]]
        if len(shapes) == len(flats) and model_shapes.keys() == state.keys():
            named = with_names(groups, shapes)
        else:
            named = [{"params": list(state)}]
        state_dict: StateDict = {"state": state, "param_groups": named}
        if lost := missing_state(state_dict):
            raise CaptureError(
                f"{str(zero / lost[0] / f'{lost[1]}.pt')!r} does not exist; other "
                "parameters of its group have this state"
            )
        return [state_dict]


def _step(common: Mapping[str, Any]) -> Any:
    """The number of steps of a checkpoint of ZeRO 3, stored apart from the parameters."""
    states = (common.get("optimizer_state_dict") or {}).get("state", {}).values()
    return step_of([in_place(state["step"]) for state in states if "step" in state])


def _states(place: Path, shape: tuple[int, ...] | None) -> dict[str, Any]:
    weights = place / f"{WEIGHTS}.pt"
    expected = _tensor(weights)[0] if exists(weights) else None
    states: dict[str, Any] = {}
    for file in sorted(place.glob("*.pt")):
        if file == weights:
            continue
        tensor, is_flat = _tensor(file)
        if file.stem == STEP or not isinstance(tensor, Tensor):
            states[file.stem] = in_place(tensor)
            continue
        stored_shape = tuple(tensor.shape)
        wanted = shape if shape is not None and is_flat else stored_shape
        if math.prod(wanted) > math.prod(stored_shape):
            raise CaptureError(
                f"{str(file)!r} has {math.prod(stored_shape)} elements, but the model's file says "
                f"that the parameter's shape is {wanted}"
            )
        if isinstance(expected, Tensor) and stored_shape != tuple(expected.shape):
            raise CaptureError(
                f"{str(file)!r} has the shape {stored_shape}, but {weights.name!r} beside it has "
                f"{tuple(expected.shape)}; files of two parameters are mixed"
            )
        read, store = partial(_read, file, wanted), partial(_store, file, wanted)
        states[file.stem] = Lazy(wanted, tensor.dtype, read, store)
    return states


def _tensor(file: Path, *, verify_large: bool = False) -> tuple[Any, bool]:
    """The state in a file, and whether it may be flat and end with padding, as of ZeRO 3."""
    value = checkpoint.load(file, mmap=True, verify_large=verify_large)
    if not isinstance(value, Mapping):
        return value, True
    if "param" not in value:
        raise CaptureError(f"{str(file)!r} must have the entry 'param', a state of one parameter")
    return value["param"], False


def _read(file: Path, shape: tuple[int, ...]) -> Tensor:
    tensor: Tensor = _tensor(file, verify_large=True)[0]
    return tensor.view(-1)[: math.prod(shape)].view(shape)


def _store(file: Path, shape: tuple[int, ...], tensor: Tensor) -> None:
    _read(file, shape).copy_(tensor)
