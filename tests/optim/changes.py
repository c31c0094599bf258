"""Changes of tensors between two steps that torch allows, as data, and training with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from qmaps import QmapsError
from qmaps.engines.addresses import missing_bytes
from qmaps.engines.plan import memory_of
from qmaps.optim import SGD, AdamW, QuantizedOptimizer

Change = Callable[[Tensor], Any]


def negative(x: Tensor) -> Tensor:
    """The values of `x`, with torch's negative bit: its memory holds the other sign."""
    actual = torch.complex(torch.zeros_like(x), -x).conj().imag
    assert actual.is_neg()
    return actual


def strided(x: Tensor) -> Tensor:
    """The values of `x` in every other element of its memory."""
    return torch.stack([x, x], dim=-1)[..., 0]


def freed(x: Tensor) -> None:
    """Take away the memory of `x`."""
    x.untyped_storage().resize_(0)


def _set(make: Callable[[Tensor], Tensor]) -> Change:
    def change(x: Tensor) -> None:
        x.data = make(x.data)

    return change


OF_MEMORY: dict[str, Change] = {
    "moved": _set(torch.clone),
    "shared": lambda x: x.share_memory_(),
    "set_": lambda x: x.set_(x.clone()),
    "replaced by zeros": _set(torch.zeros_like),
    "storage grown": lambda x: x.untyped_storage().resize_(2 * x.untyped_storage().nbytes() + 64),
    "strided": _set(strided),
    "with an offset": _set(lambda x: torch.cat([x.reshape(-1)[:1], x.reshape(-1)])[1:].view_as(x)),
}
"""Changes of any state and of parameters: of values, never of sizes."""

OF_PARAMETERS: dict[str, Change] = {
    **OF_MEMORY,
    "transposed": _set(lambda x: x.t() if x.dim() == 2 else x),
    "transposed in place": lambda x: x.t_() if x.dim() == 2 else None,
    "grown": _set(lambda x: torch.cat([x, x])),
    "shrunk where it lies": _set(lambda x: x[: len(x) // 2]),
    "shrunk": _set(lambda x: x.resize_(len(x) // 2, *x.shape[1:])),
    "negative": lambda x: None if x.dtype != torch.float32 else _set(negative)(x),
    "freed": freed,
}

OF_STATES: dict[str, Change] = {
    **OF_MEMORY,
    "freed": freed,
    "half freed": lambda x: x.untyped_storage().resize_(x.untyped_storage().nbytes() // 2),
    "empty": _set(lambda x: x.new_zeros(0)),
    "resized": lambda x: x.resize_(max(0, x.numel() - 1)),
    "negative": lambda x: _set(negative)(x) if x.is_floating_point() else None,
    "of another dtype": _set(lambda x: x.to(torch.float64)),
}

OF_GRADIENTS: dict[str, Change] = {
    **OF_MEMORY,
    "negative": lambda x: None if x.dtype != torch.float32 else _set(negative)(x),
    "without memory": _set(lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype)),
    "expanded": _set(lambda x: x.reshape(-1)[:1].view([1] * x.dim()).expand_as(x)),
    "transposed": _set(lambda x: x.t() if x.dim() == 2 else x),
    "shrunk where it lies": _set(lambda x: x[: len(x) // 2]),
    "resized": lambda x: x.resize_(0),
    "freed": freed,
}


def tensors_of(optimizer: QuantizedOptimizer, param: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in the states of a parameter."""
    for name, value in optimizer.state[param].items():
        for number, part in enumerate(memory_of(value)):
            yield f"{name}[{number}]", part


def outcome(work: Callable[[], Any]) -> str:
    """Return the message of the error raised by `work`, or an empty text."""
    try:
        work()
    except QmapsError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def snapshot(optimizer: QuantizedOptimizer, params: list[Tensor]) -> list[Tensor]:
    """Copies of all parameters and states except counters, if they have memory."""
    results = [p.detach().clone() for p in params if not missing_bytes(p)]
    for p in params:
        # Plans keep counters in one storage, so a change of one is a change of all.
        stored = [x for name, x in tensors_of(optimizer, p) if name != "step[0]"]
        results += [x.clone() for x in stored if not missing_bytes(x)]
    return results


SHAPES = ((32, 40), (20, 20), (500,), (1,))
SETTINGS: dict[str, tuple[type[QuantizedOptimizer], dict[str, Any]]] = {
    "8 bits": (AdamW, {"state_quantizers": "8bit"}),
    "rank-1": (AdamW, {"state_quantizers": "paper-4bit"}),
    "32 bits": (SGD, {"lr": 0.1, "momentum": 0.9, "state_quantizers": None}),
}
CHANGED = 2
"""Number of the step after the change."""

Trained = tuple[list[str], list[Tensor]]


def trained(
    setting: str,
    before: Callable[[QuantizedOptimizer, list[Tensor]], None],
    *,
    of_gradients: bool = False,
) -> Trained:
    """Errors of four steps and all tensors after them; `before` is called before one step."""
    make, options = SETTINGS[setting]
    generator = torch.Generator().manual_seed(1)
    params = [torch.randn(shape, generator=generator).requires_grad_() for shape in SHAPES]
    results = []
    optimizer = make(params, min_quantized_size=64, **options)
    for number in range(4):
        if number == CHANGED and not of_gradients:
            with torch.no_grad():
                before(optimizer, params)
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        if number == CHANGED and of_gradients:
            before(optimizer, params)
        results.append(outcome(optimizer.step))
    return results, snapshot(optimizer, params)


def same(ours: Trained, theirs: Trained) -> list[str]:
    """Compare errors and bits; return the errors."""
    assert ours[0] == theirs[0]
    assert len(ours[1]) == len(theirs[1])
    for a, b in zip(ours[1], theirs[1], strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    return ours[0]
