"""Safetensors files of optimizer states with names for parameter and state."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from safetensors import SafetensorError, safe_open

from qmaps.capture import snapshot
from qmaps.capture.readers.base import OF_PARTS, Reader, StateDict, state_of
from qmaps.capture.snapshot import Lazy
from qmaps.errors import CaptureError, shown

PREFIX = re.compile(r"(?:(?:optim|optimizer)\.)?state\.")
"""What may stand before all names."""

DTYPES = {name: dtype for dtype, name in snapshot.DTYPES.items()}


class NamedTensors(Reader):
    """Tensors named ``PARAMETER.exp_avg``, perhaps with ``state.`` before all names.

    Files of `StateRecorder` are not of this kind: they have names in their metadata.
    """

    name: ClassVar[str] = "safetensors"

    def holder(self, path: Path) -> Path | None:
        """`path`, if it is a safetensors file of another package with a state's name in it."""
        if path.suffix != ".safetensors" or not path.is_file():
            return None
        try:
            with safe_open(path, "numpy") as file:
                ours = snapshot.KEY in (file.metadata() or {})
                named = any(state_of(key) for key in file.keys())  # noqa: SIM118
                return path if named and not ours else None
        except (OSError, SafetensorError):
            return None  # what is wrong with it is said where our own files are read

    def state_dicts(self, path: Path) -> list[StateDict]:
        """See `Reader.state_dicts`."""
        state: dict[str, dict[str, Any]] = {}
        with safe_open(path, "numpy") as file:
            keys = list(file.keys())
            prefixed = all(PREFIX.match(key) for key in keys)
            for key in keys:
                name = PREFIX.sub("", key, count=1) if prefixed else key
                parameter, dot, _ = name.rpartition(".")
                if not (dot and (state_name := state_of(key))):
                    raise CaptureError(
                        f"{str(path)!r} has the tensor {shown(key)}; in a file of optimizer states "
                        "every name must be PARAMETER.STATE, such as layer.weight.exp_avg"
                    )
                entry = file.get_slice(key)
                dtype = DTYPES.get(entry.get_dtype())
                # Integers would be codes whose scales are elsewhere.
                if dtype is None or not (dtype.is_floating_point or state_name in OF_PARTS):
                    raise CaptureError(
                        f"{str(path)!r} has {shown(key)} in {entry.get_dtype()}, which is not read"
                    )
                shape = tuple(entry.get_shape())
                read = partial(snapshot.read_named, path, key)
                lazy = Lazy(shape, dtype, read, parts=partial(snapshot.parts_of_named, path, key))
                state.setdefault(parameter, {})[state_name] = lazy
        return [{"state": state, "param_groups": [{"params": list(state)}]}]
