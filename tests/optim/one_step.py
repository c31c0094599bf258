"""One step from given states, for tests of a rule's float32 operations one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from qmaps.optim import QuantizedOptimizer

Array = np.ndarray[Any, np.dtype[np.float32]]


def random_arrays(*names: str) -> dict[str, Array]:
    """Random p, g and states; those named in capitals are squares, so not negative."""
    arrays = {}
    for seed, name in enumerate(("p", "g", *names)):
        x = np.random.default_rng(seed).normal(size=4000).astype(np.float32)
        arrays[name.lower()] = x * x if name.isupper() else x
    return arrays


def step(
    cls: type[QuantizedOptimizer],
    arrays: dict[str, Array],
    steps: int,
    states: dict[str, str],
    **options: Any,
) -> dict[str, Array]:
    """p and the states after one step; `states` has the short name of each state's array."""
    p = nn.Parameter(torch.from_numpy(arrays["p"].copy()))
    optimizer = cls([p], state_quantizers=None, **options)
    if steps:
        optimizer.state[p] = {
            "step": torch.tensor(float(steps)),
            **{name: torch.from_numpy(arrays[short].copy()) for name, short in states.items()},
        }
    p.grad = torch.from_numpy(arrays["g"].copy())
    optimizer.step()
    results = {short: optimizer.state[p][name].numpy() for name, short in states.items()}
    return {"p": p.detach().numpy(), **results}


def assert_bits(actual: dict[str, Array], **expected: Array) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert value.dtype == np.float32
        assert np.array_equal(actual[name].view(np.int32), value.view(np.int32)), name
