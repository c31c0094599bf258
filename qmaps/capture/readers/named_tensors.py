"""Safetensors files of optimizer states with names for parameter and state."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

from qmaps.capture import snapshot
from qmaps.capture.readers.base import OF_PARTS, Reader, StateDict, state_of
from qmaps.errors import CaptureError, shown

PREFIX = re.compile(r"(?:(?:optim|optimizer)\.)?state\.")
"""What may stand before all names."""


class NamedTensors(Reader):
    """Tensors named ``PARAMETER.exp_avg``, perhaps with ``state.`` before all names.

    Files of `StateRecorder` are not of this kind: they have names in their metadata.
    """

    name: ClassVar[str] = "safetensors"
    counts_steps: ClassVar[bool] = False

    def is_here(self, path: Path) -> bool:
        """Return True for a safetensors file of another package with a state's name in it."""
        if path.suffix != ".safetensors" or not path.is_file():
            return False
        try:
            metadata, tensors = snapshot.header_of(path)
        except CaptureError:  # what is wrong with it is said where our own files are read
            return False
        return snapshot.KEY not in metadata and any(map(state_of, tensors))

    def state_dicts(self, path: Path) -> list[StateDict]:
        """See `Reader.state_dicts`."""
        state: dict[str, dict[str, Any]] = {}
        _, tensors = snapshot.header_of(path)
        prefixed = all(map(PREFIX.match, tensors))
        for key, parts in tensors.items():
            name = PREFIX.sub("", key, count=1) if prefixed else key
            parameter, dot, _ = name.rpartition(".")
            if not (dot and (state_name := state_of(key))):
                raise CaptureError(
                    f"{str(path)!r} has the tensor {shown(key)}; in a file of optimizer states "
                    "every name must be PARAMETER.STATE, such as layer.weight.exp_avg"
                )
            # Integers would be codes whose scales are elsewhere.
            is_known = parts.code in snapshot.DTYPES.values()
            if not is_known or not (parts.dtype.is_floating_point or state_name in OF_PARTS):
                raise CaptureError(
                    f"{str(path)!r} has {shown(key)} in {parts.code}, which is not read"
                )
            state.setdefault(parameter, {})[state_name] = parts.lazy()
        return [{"state": state, "param_groups": [{"params": list(state)}]}]
