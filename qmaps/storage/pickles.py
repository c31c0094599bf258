"""Unpickler of files that others wrote: it allocates no more than they hold."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import IO, Any

DEEPEST, LARGEST = 16, 2**16
"""Largest depth of nested tuples, and number of their elements, each one as often as it occurs."""

TUPLES = {ord(code) for code in (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)}


def _bounded(load: Callable[[Any], None]) -> Callable[[Any], None]:
    """Let an opcode refuse tuples whose hash as a key of a dict would take minutes."""

    def load_tuple(unpickler: Any) -> None:
        load(unpickler)
        made = unpickler.stack[-1]
        # A torch.Size is a tuple, too, but not made here.
        nested = [unpickler.tuples.get(id(x), (x, 1, len(x))) for x in made if isinstance(x, tuple)]
        depth = 1 + max((deep for _, deep, _ in nested), default=0)
        size = len(made) + sum(count for _, _, count in nested)
        if depth > DEEPEST or size > LARGEST:
            raise pickle.UnpicklingError(f"tuples of depth {depth} with {size} elements")
        unpickler.tuples[id(made)] = made, depth, size  # alive, so that its id stays its own

    return load_tuple


class BoundedUnpickler(pickle._Unpickler):
    """Python's unpickler: the one in C allocates as much memory as an index in the file says.

    Subclasses define `find_class`, with the names that are allowed.
    """

    dispatch = {  # noqa: RUF012
        code: _bounded(load) if code in TUPLES else load
        for code, load in pickle._Unpickler.dispatch.items()
        if code != ord(pickle.BYTEARRAY8)  # allocates what a length in the file says
    }

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.tuples: dict[int, tuple[tuple[Any, ...], int, int]] = {}
