"""One file per captured step: safetensors with JSON metadata.

Tensors are named by number. The metadata entry ``qmaps_capture`` says of each which parameter
and state it is, so that names may hold any character.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from qmaps.errors import CaptureError
from qmaps.files import replacing

FORMAT = 1
KEY = "qmaps_capture"
_NAME = re.compile(r"step-(\d{8,})\.safetensors")


@dataclass(frozen=True)
class About:
    """What a snapshot says of itself.

    Attributes:
        step: number of optimizer steps taken.
        optimizer: class name of the optimizer.
        hyperparameters: of each parameter's group, by parameter name.
        tensors: parameter, state, shape and dtype of each tensor, in the order of its number.
        skipped: states that are neither tensors nor lists of tensors, ``parameter: state``.
        format: version of this layout.
    """

    step: int
    optimizer: str
    hyperparameters: dict[str, dict[str, Any]]
    tensors: list[dict[str, Any]]
    skipped: list[str] = field(default_factory=list)
    format: int = FORMAT


def path_of(folder: Path, step: int) -> Path:
    """Where the snapshot of `step` lies."""
    return folder / f"step-{step:08d}.safetensors"


def steps_in(folder: Path) -> list[int]:
    """The steps captured in `folder`, ascending; unfinished files do not count."""
    matches = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def write(path: Path, about: About, tensors: Mapping[str, Tensor]) -> None:
    """Write a snapshot atomically; `tensors` by number as text, contiguous, on the CPU."""
    with replacing(path) as temporary:
        save_file(dict(tensors), temporary, metadata={KEY: json.dumps(asdict(about))})


def read_about(path: Path) -> About:
    """What the snapshot at `path` says of itself.

    Raises:
        CaptureError: it is missing, truncated, no capture, or of a later format.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            keys = set(file.keys())
    except (OSError, SafetensorError) as error:
        raise unreadable(path, error) from None
    if KEY not in metadata:
        raise CaptureError(f"{str(path)!r} is a safetensors file without qmaps metadata")
    about = json.loads(metadata[KEY])
    if about.get("format") != FORMAT:
        raise CaptureError(
            f"{str(path)!r} has capture format {about.get('format')}; {FORMAT} is supported"
        )
    if keys != {str(number) for number in range(len(about["tensors"]))}:
        raise CaptureError(f"{str(path)!r} does not hold the tensors that its metadata names")
    return About(**about)


def read_tensor(path: Path, number: int) -> Tensor:
    """Tensor `number` of the snapshot at `path`."""
    try:
        with safe_open(path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(str(number))
            return tensor
    except (OSError, SafetensorError) as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: Exception) -> CaptureError:
    """The error for a file that is missing, corrupt or truncated."""
    if isinstance(error, FileNotFoundError) or not path.exists():
        return CaptureError(f"{str(path)!r} does not exist")
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return CaptureError(f"{str(path)!r} is corrupt or truncated ({reason})")
