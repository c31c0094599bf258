"""Base class of the packages that keep states as codes, and the functions they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from qmaps.capture.snapshot import Lazy
from qmaps.errors import BadValueError


@dataclass(frozen=True)
class About:
    """Entries beside a parameter's state that its codes depend on.

    Attributes:
        group: the parameter's group.
        rest: the state_dict, or of an optimizer in memory its attributes.
        shape: shape of the parameter; None where a file does not have it.
    """

    group: Mapping[str, Any] = field(default_factory=dict)
    rest: Mapping[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] | None = None


class Coded(ABC):
    """Layout of the states of one package's optimizers.

    Attributes:
        name: name of the package.
        beside: entries of a state_dict, beside `state`, that codes of all parameters need.
    """

    name: ClassVar[str]
    beside: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def recognizes(self, state: Mapping[Any, Any]) -> bool:
        """Return True if a parameter's state is of this layout, by the names in it."""

    @abstractmethod
    def decoded(self, state: Mapping[Any, Any], about: About) -> Mapping[Any, Any]:
        """Return the state with a `lazy` in place of each group of codes and scales."""


def tensor(value: Any) -> Tensor:
    """The tensor of a state, read from its file if need be."""
    read: Tensor = value.read() if isinstance(value, Lazy) else value
    return read.detach().cpu()


def lazy(shape: Any, decode: Callable[[], Tensor]) -> Lazy:
    """A state that `decode` makes of codes when it is asked for."""
    sizes = tuple(int(size) for size in shape)
    return Lazy(sizes, torch.float32, lambda: decode().reshape(sizes), quantized=True)


def blocks(values: Tensor, scales: Tensor) -> Tensor:
    """Return one row for each scale, of equally many values."""
    if not scales.numel() or values.numel() % scales.numel():
        raise BadValueError(f"{values.numel()} codes do not fit {scales.numel()} scales")
    return values.reshape(scales.numel(), -1)


def halves(packed: Tensor) -> Tensor:
    """Unpack codes of 4 bits, the first in the high half of each byte."""
    return torch.stack([packed >> 4, packed & 15], dim=-1).reshape(-1)
