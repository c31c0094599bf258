"""Weights in DeepSpeed's checkpoints, by which ranks and experts are told apart.

Which rank a file is of is said by its name alone, so a renamed file has the states of other
elements. ZeRO 1 and 2 keep the weights twice: in float32 beside the states, cut like them, and
whole in the files of the model, of pipeline layers and of experts. Nothing can be compared in
ZeRO 3, which keeps them once, and where pipeline layers are cut among tensor-parallel ranks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from qmaps.capture.readers.rank_file import Piece, load_file
from qmaps.errors import CaptureError
from qmaps.storage import checkpoint

FILE = re.compile(r"layer_(\d+)(-|_expert_\d+_mp_rank_\d+_)model_states\.pt")
COMPARED = 4096
"""Elements of each piece that are compared, at most."""

Weights = dict[str, tuple[Path, Tensor]]
"""The file that has the weights of a parameter, and those weights, by the parameter's name."""


def weights_of_layers(folder: Path) -> Weights:
    """Weights in the files of pipeline layers and of experts."""
    found: Weights = {}
    for file in sorted(folder.iterdir()):
        if match := FILE.fullmatch(file.name):
            layer = f"{int(match[1])}." if match[2] == "-" else ""
            found |= weights_in(file, load_file(file), layer)
    return found


def weights_in(file: Path, tensors: Mapping[Any, Any] | None, prefix: str = "") -> Weights:
    """Weights in a file; those of ZeRO 3 are empty, and left out."""
    return {
        f"{prefix}{name}": (file, tensor.detach())
        for name, tensor in (tensors or {}).items()
        if isinstance(tensor, Tensor) and tensor.numel()
    }


def compare(
    name: str, number: int, pieces: Sequence[Piece], file: Path, weight: Tensor, reason: str
) -> None:
    """Raise if ranks have other weights of a parameter than a file of the model.

    Args:
        name: name of the parameter.
        number: number of the flat tensor.
        pieces: the parts of it that ranks have.
        file: the file.
        weight: the weights in it.
        reason: why that may be, for the message.
    """
    flat, at = weight.reshape(-1), 0
    for piece in pieces:
        count = min(piece.numel, COMPARED)
        own = piece.rank.masters[number].detach().reshape(-1)[piece.start : piece.start + count]
        there = flat[at : at + count]
        same = len(own) == len(there)
        if not (same and own.to(weight.dtype).allclose(there, rtol=0, atol=0, equal_nan=True)):
            for path in (file, piece.rank.path):
                checkpoint.verify(path)
            raise CaptureError(
                f"{str(piece.rank.path)!r} has other weights of {name!r} than {file.name!r}; "
                f"{reason}"
            )
        at += piece.numel
