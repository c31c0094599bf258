"""Addresses of tensors: every address used by an engine comes from here.

An engine reads memory, not tensors. Every tensor that passes the checks of this module is therefore
plain: its elements lie at its address, no negation of them is pending, and its storage holds all of
them. Tensors described to an engine once and used again (`WatchedTensors`) are checked before each
use, because torch allows the storage, the shape and the strides of a tensor to change.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra.dense import unsupported_reason
from qmaps.engines.native import core
from qmaps.errors import BadTypeError, BadValueError


def in_memory(x: Tensor) -> bool:
    """Return True if an engine can read the elements of a real tensor at its address.

    It cannot for subclasses that define torch's operations themselves (DTensors, fake tensors,
    quantized weights of any library), functorch's wrappers, tensors that are not dense, tensors
    with a pending negation (``is_neg``), and tensors whose storage is too small.
    """
    if plain_address(x):
        return True  # as nearly all are
    return _is_dense(x) and not x.is_neg() and not missing_bytes(x)


def missing_bytes(x: Tensor) -> int:
    """Number of bytes that the storage of a dense tensor lacks; 0 if it is complete."""
    if not x.numel():
        return 0
    needed = (int(x.storage_offset()) + _spanned(x)) * x.element_size()
    if not x.data_ptr():  # a zero tensor without memory, or a storage without memory
        return needed
    missing = needed - int(x.untyped_storage().nbytes())
    return missing if missing > 0 else 0


def _spanned(x: Tensor) -> int:
    """Number of elements between the first and the last of a dense, non-empty tensor."""
    if x.is_contiguous():
        return x.numel()
    strides = zip(x.shape, x.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in strides)


def check_readable(x: Tensor, name: str) -> None:
    """Raise if the elements of a tensor cannot be read.

    Raises:
        BadTypeError: it is not dense, or has no values.
        BadValueError: as `check_memory`.
    """
    if plain_address(x):
        return
    if why := unsupported_reason(x):
        raise BadTypeError(f"{name} {why}; expected a dense tensor with values")
    check_memory(x, name)


def check_memory(x: Tensor, name: str) -> None:
    """Raise if the storage of a dense tensor is too small; torch does not check this itself.

    Raises:
        BadValueError: its storage is too small, as after ``x.untyped_storage().resize_(0)``.
    """
    if plain_address(x):
        return
    if _is_dense(x) and (missing := missing_bytes(x)) and not x._is_zerotensor():
        raise BadValueError(
            f"{name} has shape {tuple(x.shape)}, but its storage is {missing} bytes too small; it "
            "may have been freed or resized"
        )


def plain(x: Tensor, name: str) -> Tensor:
    """`x` itself, or a dense copy where a negation is pending, so that its memory holds its values.

    Raises:
        BadValueError: as `check_memory`.
    """
    if plain_address(x) or not _is_dense(x):
        return x
    if missing_bytes(x):
        check_memory(x, name)
        return torch.zeros(x.shape, dtype=x.dtype, device=x.device)  # it was a zero without memory
    return x.resolve_neg()


def _is_dense(x: Tensor) -> bool:
    """Return True if `x` has strides and a storage, and its class has torch's own operations."""
    return type(x).__torch_dispatch__ is Tensor.__torch_dispatch__ and not unsupported_reason(x)


def address(x: Tensor, numel: int | None = None, name: str = "a tensor") -> int:
    """Address of the first element of a contiguous tensor `in_memory`, for an engine.

    Raises:
        BadValueError: `x` is not such a tensor, or has another number of elements than `numel`.
    """
    at = plain_address(x)
    if not at and not (in_memory(x) and x.is_contiguous()):
        raise BadValueError(
            f"{name} of shape {tuple(x.shape)} must be contiguous, with all of its elements in "
            "memory"
        )
    if numel is not None and x.numel() != numel:
        raise BadValueError(f"{name} must have {numel} elements, got {x.numel()}")
    return at or x.data_ptr()


def overlapping(tensors: Sequence[Tensor]) -> set[int]:
    """Indices of tensors with overlapping memory, or repeated in `tensors`."""
    if len(tensors) == 1:
        return set()
    spans = []
    for number, x in enumerate(tensors):
        begin = end = 0
        if in_memory(x) and x.numel():
            begin = x.data_ptr()
            end = begin + _spanned(x) * x.element_size()
        # Those without memory share it with themselves alone.
        spans.append((begin, end, id(x), number))
    indices: set[int] = set()
    furthest = (0, 0, 0, -1)
    for span in sorted(spans):
        if span[0] < furthest[1] or span[:3] == furthest[:3]:
            indices |= {span[3], furthest[3]}
        if span[1] >= furthest[1]:
            furthest = span
    return indices


def tensor_info(tensors: Sequence[Tensor]) -> tuple[list[int], Hashable]:
    """Addresses of tensors, 0 without memory, and a value that changes with any other property.

    The properties are layouts, dtypes, devices, shapes and strides, and which tensors have all of
    their memory and a pending negation. All must be of classes with torch's operations.
    """
    if _TORCH:
        compiled: tuple[list[int], bytes] = core.tensor_info(list(map(_IMPLEMENTATION, tensors)))
        return compiled
    rows = list(map(_info, tensors))
    return [row[0] for row in rows], tuple(row[1:] for row in rows)


class WatchedTensors:
    """Tensors with addresses known to an engine; torch refuses to swap them while they are held."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        if _TORCH:
            self._watched = core.WatchedTensors(list(map(_IMPLEMENTATION, self._tensors)))
        else:
            self._first = tensor_info(self._tensors)

    def unchanged(self) -> bool:
        """Return True if addresses and appearance are unchanged since this object was made."""
        if _TORCH:
            same: bool = self._watched.unchanged()
            return same
        return tensor_info(self._tensors) == self._first


def _info(x: Tensor) -> tuple[Any, ...]:
    """`tensor_info` of one tensor, in Python."""
    if x.layout != torch.strided:
        return 0, x.layout
    complete = not missing_bytes(x)
    attributes = x.dtype, x.device, tuple(x.shape), x.stride(), complete, x.is_neg()
    return x.data_ptr() if complete and x.numel() else 0, *attributes


_IMPLEMENTATION = attrgetter("_cdata")


def _use_torch() -> bool:
    """Let the native engine inspect tensors by torch's C interface, ten times as fast."""
    if core is None:
        return False
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        functions = [getattr(library, name) for name in core.torch_functions]
    except (OSError, AttributeError):  # another system, or a torch without that interface
        return False
    addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions]
    core.use_torch(addresses, [Tensor, torch.nn.Parameter])
    return True


_TORCH = _use_torch()
plain_address: Callable[[Tensor], int] = core.plain_address if _TORCH else lambda _: 0
"""Address of a tensor that is plain, contiguous and not empty; 0 for most others."""
