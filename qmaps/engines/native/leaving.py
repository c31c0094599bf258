"""What is alive when Python exits lets go of the extension's objects.

A hook of autograd (``register_post_accumulate_grad_hook``) that knows its optimizer closes a circle
that Python's collector cannot see, as part of it is in C++. Such optimizers are never freed, and
what they hold of the extension would be reported as leaked.
"""

from __future__ import annotations

import atexit
from typing import Protocol
from weakref import WeakSet


class Holder(Protocol):
    """Holds objects of the extension, and can make them anew."""

    def forget_engine(self) -> None:
        """Let go of them; what comes afterwards makes them again."""


_holders: WeakSet[Holder] = WeakSet()


def forget_at_exit(holder: Holder) -> None:
    """Let `holder` forget before Python ends, if it is still alive then."""
    _holders.add(holder)


@atexit.register
def _leave() -> None:
    for holder in list(_holders):
        holder.forget_engine()
