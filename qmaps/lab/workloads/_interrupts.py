"""Ctrl-C that waits for a step to be whole."""

from __future__ import annotations

import signal
import threading
from types import TracebackType
from typing import Self


class HeldInterrupts:
    """Context manager that holds Ctrl-C back until `check` is called or the block ends.

    A step within the block is so never left half done. A second Ctrl-C before that raises
    KeyboardInterrupt at once, for a step that hangs. Where the program handles Ctrl-C in its own
    way, or ignores it, nothing changes. Threads other than the main one never receive Ctrl-C.
    """

    def __init__(self) -> None:
        self._arrived = False
        self._holding = False

    def __enter__(self) -> Self:
        on_main_thread = threading.current_thread() is threading.main_thread()
        if on_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
            self._holding = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._release()
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed since the last call."""
        if self._arrived:
            self._arrived = False
            raise KeyboardInterrupt

    def _note(self, *_: object) -> None:
        if self._arrived:
            self._release()
            raise KeyboardInterrupt
        self._arrived = True

    def _release(self) -> None:
        if self._holding:
            self._holding = False
            signal.signal(signal.SIGINT, signal.default_int_handler)
