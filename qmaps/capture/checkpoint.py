"""Reading the states of a saved optimizer."""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qmaps.capture import snapshot
from qmaps.capture.states import CapturedStates
from qmaps.errors import BadValueError, CaptureError
from qmaps.files import output_folder

Names = torch.nn.Module | Iterable[str] | None

WRAPPERS = ("optimizer", "optimizer_state_dict", "optim", "optimizer_state", "optimizer_states")
"""Where larger checkpoints keep the optimizer's state_dict."""


def read(path: Path, names: Names = None) -> CapturedStates:
    """The states of a checkpoint; see `qmaps.capture.load`."""
    state_dict = _find(_load(path), path)
    groups, states = state_dict["param_groups"], state_dict["state"]
    labels = _labels(groups, names)
    entries: dict[str, dict[str, tuple[tuple[int, ...], Any]]] = {}
    hyperparameters: dict[str, dict[str, Any]] = {}
    step = 0
    for group_number, group in enumerate(groups):
        for position, key in enumerate(group["params"]):
            label = labels.get(key, f"group{group_number}.param{position}")
            hyperparameters[label] = plain_options(group)
            for name, value in tensors_of(states.get(key, {})).items():
                if name == "step":
                    step = max(step, int(value))
                    continue
                entries.setdefault(label, {})[name] = (tuple(value.shape), _constant(value))
    if not entries:
        raise CaptureError(f"{str(path)!r} is an optimizer checkpoint without any state")
    return CapturedStates(entries, step=step, hyperparameters=hyperparameters, source=str(path))


def convert(
    checkpoint: str | os.PathLike[str], out: str | os.PathLike[str], *, names: Names = None
) -> Path:
    """Write a checkpoint's states as a capture folder, and return the new file.

    Args:
        checkpoint: as for `qmaps.capture.load`.
        out: the folder, created if need be.
        names: parameter names, where the checkpoint has none.

    Raises:
        CaptureError, OutputError: as for `load` and `StateRecorder`; nothing is written then.
    """
    source = Path(checkpoint)
    if not source.exists():
        raise CaptureError(f"{str(source)!r} does not exist")
    states = read(source, names)
    tensors: dict[str, Tensor] = {}
    entries: list[dict[str, Any]] = []
    for parameter in states.parameters():
        for state in states.states(parameter):
            tensor = states.tensor(parameter, state, check=False).contiguous()
            tensors[str(len(entries))] = tensor.clone()
            entries.append(describe(parameter, state, tensor))
    about = snapshot.About(
        step=states.step,
        optimizer=states.optimizer,
        hyperparameters={name: states.hyperparameters(name) for name in states.parameters()},
        tensors=entries,
    )
    path = snapshot.path_of(output_folder(out), states.step)
    snapshot.write(path, about, tensors)
    return path


def describe(parameter: str, state: str, tensor: Tensor) -> dict[str, Any]:
    """What a snapshot's metadata says of one tensor."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {
        "parameter": parameter,
        "state": state,
        "shape": list(tensor.shape),
        "dtype": dtype,
    }


def tensors_of(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of one parameter's state; members of lists as ``name.0``, ``name.1``, ...

    Quantized states of qmaps count as the tensors that they decode to.
    """
    found: dict[str, Tensor] = {}
    for name, value in state.items():
        members = (
            [(f"{name}.{i}", member) for i, member in enumerate(value)]
            if isinstance(value, (list, tuple))
            else [(str(name), value)]
        )
        for label, member in members:
            if isinstance(member, Tensor):
                found[label] = member
            elif hasattr(member, "dequantize"):
                found[label] = member.dequantize()
            elif isinstance(member, Mapping) and {"packed", "spec"} <= member.keys():
                from qmaps.store import from_plain

                found[label] = from_plain(member).dequantize()
            elif name == "step" and isinstance(member, (int, float)):
                found[label] = torch.tensor(float(member))
    return found


def plain_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a parameter group that JSON can hold; tensors of one element as numbers."""
    options: dict[str, Any] = {}
    for name, value in group.items():
        if name in ("params", "param_names"):
            continue
        if isinstance(value, Tensor):
            value = float(value) if value.numel() == 1 else None
        elif isinstance(value, (list, tuple)):
            value = [float(v) if isinstance(v, Tensor) else v for v in value]
        if _is_json(value):
            options[name] = value
    return options


def _is_json(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_json, value))
    return isinstance(value, (bool, int, float, str))


def _constant(tensor: Tensor) -> Any:
    return lambda: tensor


def _load(path: Path) -> Any:
    """The object in a ``torch.save`` file, loaded without executing code."""
    try:
        # Tensors of the zip format stay on disk until they are read.
        mapped = zipfile.is_zipfile(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # torch raises many kinds on damaged files
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        if isinstance(error, pickle.UnpicklingError) and refused:
            raise CaptureError(
                f"{str(path)!r} would need code execution to load ({refused[1]}); save the "
                "optimizer's state_dict() with plain tensors and numbers"
            ) from None
        raise CaptureError(
            f"{str(path)!r} is no checkpoint that torch can load; it is corrupt, truncated, or "
            "something else"
        ) from None


def _find(loaded: Any, path: Path) -> Mapping[str, Any]:
    """The optimizer's state_dict in `loaded`."""
    if isinstance(loaded, (list, tuple)) and loaded:
        return _find(loaded[0], path)
    if isinstance(loaded, Mapping):
        if {"state", "param_groups"} <= loaded.keys():
            return loaded
        for wrapper in WRAPPERS:
            if wrapper in loaded:
                return _find(loaded[wrapper], path)
    kind = type(loaded).__name__
    if isinstance(loaded, Mapping):
        shown = [str(key) for key in list(loaded)[:4]]
        kind = f"a dict with {', '.join(shown)}{', ...' if len(loaded) > 4 else ''}"
    raise CaptureError(
        f"{str(path)!r} holds no optimizer state_dict ('state' and 'param_groups'), but {kind}"
    )


def _labels(groups: Iterable[Mapping[str, Any]], names: Names) -> dict[Any, str]:
    """Parameter names by the keys that a state_dict uses."""
    keys = [key for group in groups for key in group["params"]]
    if names is None:
        return {
            key: name
            for group in groups
            for key, name in zip(group["params"], group.get("param_names", ()), strict=False)
        }
    if isinstance(names, torch.nn.Module):
        names = [name for name, parameter in names.named_parameters() if parameter.requires_grad]
    given = list(names)
    if len(given) != len(keys):
        raise BadValueError(
            f"names has {len(given)} entries; the checkpoint has {len(keys)} parameters"
        )
    return dict(zip(keys, given, strict=True))
