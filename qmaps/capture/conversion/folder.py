"""Writing a converted state_dict as a folder of torch.distributed.checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qmaps.algebra.saved import from_plain
from qmaps.distributed import rows
from qmaps.errors import BadValueError, OutputError, shown
from qmaps.storage.locks import new_folder


def save(state_dict: Mapping[str, Any], folder: Path, key: str) -> None:
    """Write a state_dict for ``dcp.load``, on any number of processes.

    Args:
        state_dict: an optimizer's, with names of parameters as keys or in `param_names` of its
            groups. Quantized states of qmaps are written by rows (`qmaps.distributed.rows`), as its
            sharded optimizers write them.
        folder: the folder, which must not exist; it appears whole or not at all.
        key: the entry that the training has the optimizer's state_dict under.

    Raises:
        BadValueError: a parameter has no name.
        OutputError: the folder cannot be written.
    """
    # Imported here because it takes long.
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_saver import save as save_folder

    groups = [dict(group) for group in state_dict["param_groups"]]
    names: dict[Any, Any] = {}
    for group in groups:
        own = group.get("param_names") or group["params"]
        names.update(zip(group["params"], own, strict=True))
        group["params"] = list(own)
    state = {names.get(key, key): members for key, members in state_dict["state"].items()}
    if numbered := [name for name in state if not isinstance(name, str)]:
        raise BadValueError(
            f"the checkpoint names a parameter {shown(numbered[0])}; a folder of "
            "torch.distributed.checkpoint needs the parameters' own names"
        )
    whole = {
        "state": {
            name: {s: _by_rows(value) for s, value in members.items()}
            for name, members in state.items()
        },
        "param_groups": groups,
    }
    with new_folder(folder) as new, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this is one process
        try:
            save_folder({key: whole}, checkpoint_id=new, no_dist=True)
        except CheckpointException as error:
            reason = error.failures[0][0]
            raise OutputError(f"{str(folder)!r} cannot be written ({reason})") from error


def _by_rows(value: Any) -> Any:
    return rows.write(from_plain(value), None) if isinstance(value, Mapping) else value
