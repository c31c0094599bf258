"""Which engine runs here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Backend:
    """An engine that executes quantizers and optimizer steps.

    Attributes:
        name: "reference" (plain PyTorch, any device), "native" (C++, CPU) or "cuda".
        available: whether it can run here.
        reason: why it can or cannot.
    """

    name: str
    available: bool
    reason: str


def backends() -> list[Backend]:
    """Every engine, with the reason why it does or does not run here.

    >>> [b.name for b in backends() if b.available]
    ['reference']
    """
    return [
        Backend("reference", True, "plain PyTorch, on CPU and CUDA tensors"),
        Backend("native", False, "not part of this version of qmaps"),
        Backend("cuda", False, "not part of this version of qmaps; CUDA tensors run on reference"),
    ]


def backend() -> str:
    """The engine that runs here.

    >>> backend()
    'reference'
    """
    return "reference"
