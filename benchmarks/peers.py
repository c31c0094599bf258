"""Optional peers, and the engine in use."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from benchmarks.case import UnavailableError
from benchmarks.timing import Work
from qmaps.errors import BadValueError
from qmaps.ops.backends import use_backend

BITSANDBYTES = "bitsandbytes"
KERNEL = "bitsandbytes' kernel"
"""bitsandbytes' C function alone, into existing storage: without the cost of its Python code."""
TORCHAO = "torchao"
FLASHOPTIM = "FlashOptim"
"""AdamW of bitsandbytes, for CUDA devices only."""


def need(module: str) -> Any:
    """Import a peer.

    Raises:
        UnavailableError: it is not installed, or cannot be imported.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] == package:
            raise UnavailableError(f"not installed; pip install {package}") from None
        raise UnavailableError(f"{package} cannot be imported: {error}") from None
    except Exception as error:
        raise UnavailableError(f"{package} cannot be imported: {error}") from None


def kernel(name: str, code: Tensor, data: Tensor, absmax: Tensor, out: Tensor, block: int) -> Work:
    """A call of bitsandbytes' C function `name` on these tensors, with references to them."""
    function = getattr(need("bitsandbytes.cextension").lib, name)
    sizes = ctypes.c_longlong(block), ctypes.c_longlong(data.numel())

    def call() -> None:
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (code, data, absmax, out)]
        function(*pointers, *sizes)

    return call


class Compiled:
    """A step that its package compiles; it runs uncompiled where compiling fails.

    Attributes:
        form: "compiled ..." or "uncompiled ...", for reports; "" before the first call.
    """

    def __init__(self, step: Work) -> None:
        self._step = step
        self.form = ""

    def __call__(self) -> None:
        """One step."""
        if self.form.startswith("uncompiled"):
            self._uncompiled()
            return
        try:
            self._step()
        except Exception as error:
            if self.form:
                raise
            self._uncompiled()
            self.form = f"uncompiled, for torch.compile fails here with {type(error).__name__}"
        self.form = self.form or "compiled by torch.compile, which it calls itself"

    def _uncompiled(self) -> None:
        with torch.compiler.set_stance("force_eager"):
            self._step()


def torchao(name: str, **options: Any) -> Callable[[list[Tensor]], Work]:
    """Return a function from parameters to the step of torchao's optimizer `name`.

    torchao compiles the step of each shape of parameters. Compiling needs a C++ compiler and makes
    the step 2 to 5 times faster on CPU tensors.
    """

    def prepare(params: list[Tensor]) -> Work:
        optimizer = getattr(need("torchao.optim"), name)(params, **options)
        # Processes of the compiler's own would look like other programs at work.
        need("torch._inductor.config").compile_threads = 1
        return Compiled(optimizer.step)

    return prepare


@contextmanager
def with_backend(name: str) -> Iterator[None]:
    """Run on this engine of qmaps inside the block.

    Raises:
        UnavailableError: it does not run here.
    """
    try:
        chosen = use_backend(name)
        chosen.__enter__()
    except BadValueError as error:
        raise UnavailableError(str(error)) from None
    try:
        yield
    finally:
        chosen.__exit__(None, None, None)
