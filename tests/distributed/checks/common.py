"""Models, training and comparisons for all checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # by DistributedDataParallel otherwise, in each rank
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.engines.sharding.shards import local, shard_of
from qmaps.engines.step import NUMBERS
from qmaps.optim import AdamW, QuantizedOptimizer
from qmaps.optim.records import is_whole


@dataclass
class Here:
    """This process; set after its group has started.

    Attributes:
        rank: its number in the group.
        world: number of processes; 0 without a group.
        folder: for files that processes exchange.
    """

    rank: int = 0
    world: int = 1
    folder: Path = field(default_factory=Path)


here = Here()


Make = Callable[..., QuantizedOptimizer]


def model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Blocks of 256 end at the borders of 2 and of 4 shards, in shards and in the full tensor."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64, bias=False))
    return layers.to(dtype)


def paper_4bit(params: Any, **options: Any) -> AdamW:
    """An optimizer with scales of second moments across shards."""
    return AdamW(params, state_quantizers="paper-4bit", **options)


def sharded(net: nn.Sequential, mesh: Any = None) -> nn.Sequential:
    for layer in (net[0], net[2], net):
        fully_shard(layer, **({} if mesh is None else {"mesh": mesh}))
    return net


def train(net: nn.Module, optimizer: Any, steps: range) -> None:
    """The same batch on every process, so means of gradients are exact."""
    dtype = local(next(net.parameters())).dtype
    for step in steps:
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(step)).to(dtype)
        net.zero_grad()
        (net(x) - x).square().mean().backward()
        for stepped in optimizer if isinstance(optimizer, list) else [optimizer]:
            stepped.step()


def floats(value: Tensor | QuantizedTensor) -> Tensor:
    return value.dequantize() if isinstance(value, QuantizedTensor) else value


def cut(param: Tensor, full: Tensor) -> Tensor:
    """This process's part of a full tensor with the parameter's placement."""
    shard = shard_of(param)
    return full if shard is None else shard.cut(full)


def pair(
    make: Make, steps: int, dtype: torch.dtype = torch.float32, mesh: Any = None
) -> tuple[QuantizedOptimizer, QuantizedOptimizer]:
    """An optimizer of full parameters and one of shards, after the same training."""
    full, parts = model(dtype), sharded(model(dtype), mesh)
    ours, theirs = make(full.parameters()), make(parts.parameters())
    train(full, ours, range(steps))
    train(parts, theirs, range(steps))
    return ours, theirs


def params_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def assert_same(ours: QuantizedOptimizer, theirs: QuantizedOptimizer) -> None:
    """Parameters, codes and scales of shards are cut from the full ones, or equal them."""
    for p, q in zip(params_of(ours), params_of(theirs), strict=True):
        assert torch.equal(cut(q, p), local(q))
        for name, value in ours.state[p].items():
            actual = theirs.state[q][name]
            assert type(actual) is type(value), name
            if is_whole(ours, name):
                assert not actual.shape[0] or torch.equal(floats(actual), floats(value)), name
                continue
            if name in NUMBERS or not isinstance(value, QuantizedTensor):
                assert torch.equal(actual, value if name in NUMBERS else cut(q, value)), name
                continue
            assert torch.equal(cut(q, value.codes()), actual.codes()), name
            assert torch.equal(cut(q, value.dequantize()), actual.dequantize()), name
