"""Objects of the extension are released when Python exits.

A hook of autograd (``register_post_accumulate_grad_hook``) with a reference to its optimizer closes
a reference cycle invisible to Python's garbage collector, because part of it is in C++. Such
optimizers are never freed, and their objects of the extension would be reported as leaked.
"""

from __future__ import annotations

import atexit
from typing import Protocol
from weakref import WeakSet


class Holder(Protocol):
    """Holds objects of the extension, and can create them again."""

    def forget_engine(self) -> None:
        """Release them; they are created again at their next use."""


_holders: WeakSet[Holder] = WeakSet()


def forget_at_exit(holder: Holder) -> None:
    """Call ``holder.forget_engine()`` at exit, if `holder` is still alive then."""
    _holders.add(holder)


@atexit.register
def _leave() -> None:
    for holder in list(_holders):
        holder.forget_engine()
