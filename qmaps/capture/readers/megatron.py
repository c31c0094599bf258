"""Megatron-core: checkpoints of the format ``torch_dist``, by torch's writer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from qmaps.capture.readers.base import LONGEST, Reader, StateDict, refuse_missing_state
from qmaps.capture.snapshot import Lazy
from qmaps.errors import DAMAGE, CaptureError, shown
from qmaps.storage import checkpoint, distributed
from qmaps.storage.checkpoint import Part
from qmaps.storage.distributed import Stored
from qmaps.storage.files import content_of, exists

ABOUT = "metadata.json"
COMMON = "common.pt"
COMMON_OBJECT = "common_state/shard_0_1"
"""Key of a list with the content of `COMMON`, among the shards, from Megatron-core 0.19 on."""

WEIGHTS = frozenset({"param", "fp32_param"})
"""The parameter itself, which lies with its states."""


class Megatron(Reader):
    """The distributed optimizer, saved as ``fully_reshardable``, or an optimizer in one piece.

    Layers of one kind may be one parameter, with the layer as its first dimension. Several chained
    optimizers, such as that of experts, are read as one. Megatron does not save the parameters of a
    group, so options with different values are left out. What all ranks share, such as the groups,
    is in ``common.pt``, or from 0.19 on an object in the shards.
    """

    name: ClassVar[str] = "megatron"
    latest: ClassVar[str] = "latest_checkpointed_iteration.txt"

    def is_here(self, path: Path) -> bool:
        """Return True for a folder with ``torch_dist`` in its ``metadata.json``."""
        try:
            metadata = json.loads(content_of(path / ABOUT, LONGEST))
        except (OSError, ValueError, RecursionError):
            return False
        is_dist = isinstance(metadata, Mapping) and metadata.get("sharded_backend") == "torch_dist"
        return is_dist and exists(path / distributed.METADATA)

    def newest(self, path: Path) -> Path | None:
        """Return the folder of the iteration in the file `latest`."""
        try:
            return path / f"iter_{int(content_of(path / self.latest, LONGEST)):07d}"
        except (OSError, ValueError):
            return None

    def edited(self, path: Path) -> Sequence[Path | Part]:
        """The file or the stream with the steps."""
        return [_common(path, distributed.contents(path))]

    def state_dicts(self, path: Path) -> list[StateDict]:
        """See `Reader.state_dicts`."""
        stored = distributed.contents(path)
        common = _common(path, stored)
        if isinstance(common, Part):
            (saved,) = checkpoint.load_part(common)
        else:
            saved = checkpoint.load(common)
        state: dict[str, dict[str, Any]] = {}
        for key, tensor in stored.tensors.items():
            _, marker, state_and_parameter = key.partition("optimizer.state.")
            name, dot, parameter = state_and_parameter.partition(".")
            if marker and dot and name not in WEIGHTS:
                lazy = Lazy(tensor.shape, tensor.dtype, tensor.read, tensor.store)
                state.setdefault(parameter, {})[name] = lazy
        try:
            optimizer = saved["optimizer"]
            # Parameters of experts, or those that Muon does not take, have one of their own.
            several = [part for key, part in optimizer.items() if isinstance(key, int)]
            optimizers = several or [optimizer]
            kind = optimizers[0].get("param_state_sharding_type")
            parts = [part["optimizer"]["param_groups"] for part in optimizers] if state else []
            groups = [group for part in parts for group in part]
        except DAMAGE:
            raise CaptureError(
                f"{str(path if isinstance(common, Part) else common)!r} must have the optimizer's "
                "param_groups, as Megatron-core saves them"
            ) from None
        if not state:
            raise CaptureError(
                f"{str(path)!r} has no states by parameter, but "
                f"param_state_sharding_type={shown(kind)}; only 'fully_reshardable' says which "
                "parameters they are of"
            )
        options = _alike(groups)
        if (step := options.pop("step", None)) is not None:
            for states in state.values():
                states["step"] = step
        groups = [{**options, "params": list(state)}]
        return [refuse_missing_state(path, {"state": state, "param_groups": groups})]


def _common(path: Path, stored: Stored) -> Path | Part:
    """The file with what all ranks share, or the stream with it."""
    common = path / COMMON
    return common if exists(common) else stored.objects.get(COMMON_OBJECT, common)


def _alike(groups: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The options shared by all groups."""
    first, *further = groups
    return {
        name: value
        for name, value in first.items()
        if all(name in group and group[name] == value for group in further)
    }
