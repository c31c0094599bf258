"""What every reader of checkpoints does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from qmaps.errors import BadValueError, CaptureError

StateDict = dict[str, Any]
"""An optimizer's state_dict with `Lazy` in place of tensors."""


class Reader(ABC):
    """How one package stores an optimizer's states in files.

    Attributes:
        name: name of the format.
        asked: readers with a smaller number are asked first whether they detect a checkpoint.
        latest: the file that names the newest checkpoint in a folder of several; empty where the
            format has none.
    """

    name: ClassVar[str]
    asked: ClassVar[int] = 0
    latest: ClassVar[str] = ""

    @abstractmethod
    def holder(self, path: Path) -> Path | None:
        """What of a file or folder is one checkpoint of this format.

        It is found by names of files; nothing is loaded.

        Returns:
            `path` itself, or the folder within it of the checkpoint that `latest` names; None if
            `path` is not of this format.
        """

    def detect(self, path: Path) -> bool:
        """Whether a file or folder is of this format."""
        return self.holder(path) is not None

    def edited(self, path: Path) -> list[Path]:  # noqa: ARG002
        """Files of ``torch.save`` that change when states or their steps are stored.

        Args:
            path: what `holder` returns.
        """
        return []

    @abstractmethod
    def read(self, path: Path) -> list[StateDict]:
        """Read all but the tensors.

        Args:
            path: a file or folder that `detect` accepts.

        Returns:
            For each optimizer a state_dict as ``torch.optim`` has it, with `state` and
            `param_groups`, in which every tensor is a `Lazy`. Parameters are named by strings
            where the checkpoint has their names. States that are kept as they are, in no codes,
            can be stored, and so can steps that are tensors.

        Raises:
            CaptureError: a file is missing, damaged, would run code, or does not fit the others.
        """


def named_by(folder: Path, file: str) -> Path | None:
    """The folder in `folder` that a text file such as ``latest`` names; None if it names none."""
    try:
        name = (folder / file).read_text().strip()
    except (OSError, ValueError):
        return None
    # Anything else could lead to files of another owner.
    plain = name not in ("", "..") and "\0" not in name and Path(name).name == name
    return folder / name if plain else None


def equal(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors have the same values, NaN where the other has NaN included."""
    if one.equal(other):
        return True
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def reading(read: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """`read` with errors of files turned into CaptureError."""

    def wrapped() -> Tensor:
        try:
            return read()
        except CaptureError:
            raise
        except BadValueError as error:
            raise CaptureError(str(error)) from None

    return wrapped
