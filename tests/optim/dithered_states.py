"""What may happen to dithered states between two steps of AdamW."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import encoded_by
from qmaps.optim import AdamW

SPECS = "B64/linear@4s+dither + rank1/linear@4u+dither"
Change = Callable[[AdamW, torch.nn.Parameter], None]


def encoded_in_place(optimizer: AdamW, param: torch.nn.Parameter) -> None:
    t = optimizer.state[param]["exp_avg"]
    t.quantizer.quantize(torch.ones(t.shape), out=t, key=RoundingKey(seed=77, step=2))


def another_key(optimizer: AdamW, param: torch.nn.Parameter) -> None:
    encoded_by(optimizer.state[param]["exp_avg_sq"], RoundingKey(seed=5, step=2**40, offset=3))


def another_tensor_of_these_codes(optimizer: AdamW, param: torch.nn.Parameter) -> None:
    state = optimizer.state[param]
    state["exp_avg"] = replace(state["exp_avg"], key=RoundingKey(seed=8))


def runs(optimizer: AdamW, param: torch.nn.Parameter) -> None:
    encoded_by(optimizer.state[param]["exp_avg"], RoundingKey(runs=(8, 32)))
