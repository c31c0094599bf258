"""DeepSpeed's universal checkpoints: a folder for each parameter, a file for each of its states."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from qmaps.capture.readers.base import Reader, StateDict, missing_state, named_by
from qmaps.capture.readers.deepspeed_files import load_file
from qmaps.capture.readers.zero import model_of, shapes_of, step_of, with_names
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

    def holder(self, path: Path) -> Path | None:
        """The folder with the file ``zero/optimizer_state.pt``."""
        if not path.is_dir():
            return None
        if exists(path / "zero" / OPTIMIZER):
            return path
        step = named_by(path, self.latest)
        return step if step is not None and exists(step / "zero" / OPTIMIZER) else None

    def edited(self, path: Path) -> list[Path]:
        """The files of the states; not those of the parameters themselves."""
        files = sorted((path / "zero").rglob("*.pt"))
        return [file for file in files if file.name != f"{WEIGHTS}.pt"]

    def state_dicts(self, path: Path) -> list[StateDict]:
        """See `Reader.state_dicts`."""
        folder = self.holder(path) or path
        optimizer_file = folder / "zero" / OPTIMIZER
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
        shapes = shapes_of(*model_of(folder)) if any(folder.glob("*model_states.pt")) else []
        model_shapes = {name: shape for group in shapes for name, shape in group.items()}
        state = {
            name: _states(place, model_shapes.get(name))
            for name, place in _parameters(optimizer_file.parent)
        }
        for states in state.values():
            if states and step is not None:
                states.setdefault("step", step)
        if missing := [name for name in model_shapes if name not in state]:
            raise CaptureError(
                f"{str(optimizer_file.parent / missing[0])!r} does not exist; the model's file has "
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
                f"{str(optimizer_file.parent / lost[0] / f'{lost[1]}.pt')!r} does not exist; other "
                "parameters of its group have this state"
            )
        return [state_dict]


def _step(common: Mapping[str, Any]) -> Any:
    """The number of steps of a checkpoint of ZeRO 3, stored apart from the parameters."""
    inner = common.get("optimizer_state_dict") or {}
    return step_of([s["step"] for s in inner.get("state", {}).values() if "step" in s])


def _parameters(folder: Path) -> Iterator[tuple[str, Path]]:
    """The parameters and their folders; a name may have slashes."""
    for path in sorted({file.parent for file in folder.rglob("*.pt")} - {folder}):
        yield path.relative_to(folder).as_posix(), path


def _states(place: Path, shape: tuple[int, ...] | None) -> dict[str, Any]:
    weights = place / f"{WEIGHTS}.pt"
    expected = _tensor(_value(weights, verify_large=False)) if exists(weights) else None
    states: dict[str, Any] = {}
    for file in sorted(place.glob("*.pt")):
        if file == weights:
            continue
        value = _value(file, verify_large=False)
        tensor = _tensor(value)
        if file.stem == STEP or not isinstance(tensor, Tensor):
            states[file.stem] = step_of([tensor])
            continue
        stored_shape = wanted = tuple(tensor.shape)
        if shape is not None and not isinstance(value, Mapping):
            wanted = shape  # those of ZeRO 3 are flat and end with padding
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
        read, store = _reader(file, wanted), _writer(file, wanted)
        states[file.stem] = Lazy(wanted, tensor.dtype, read, store)
    return states


def _tensor(value: Any) -> Any:
    """The state itself; those of ZeRO 3 have no dict around them."""
    return value["param"] if isinstance(value, Mapping) else value


def _value(file: Path, *, verify_large: bool = True) -> Any:
    value = checkpoint.load(file, mmap=True, verify_large=verify_large)
    if isinstance(value, Mapping) and "param" not in value:
        raise CaptureError(f"{str(file)!r} must have the entry 'param', a state of one parameter")
    return value


def _reader(file: Path, shape: tuple[int, ...]) -> Any:
    def read() -> Tensor:
        return _unpadded(file, shape).reshape(shape)

    return read


def _writer(file: Path, shape: tuple[int, ...]) -> Any:
    def store(tensor: Tensor) -> None:
        _unpadded(file, shape).copy_(tensor.reshape(-1))

    return store


def _unpadded(file: Path, shape: tuple[int, ...]) -> Tensor:
    tensor: Tensor = _tensor(_value(file))
    return tensor.view(-1)[: math.prod(shape)]
