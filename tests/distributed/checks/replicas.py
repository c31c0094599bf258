"""Copies of a model: data-parallel training and ZeroRedundancyOptimizer."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # by DistributedDataParallel otherwise, in each rank
import torch.distributed as dist
from torch import Tensor, nn

from qmaps import lpmm
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.errors import BadTypeError, BadValueError
from qmaps.optim import LAMB, AdamW, AdamW4bit, AdamW8bit, QuantizedOptimizer
from tests.distributed.checks.checkpoints import options
from tests.distributed.checks.common import here, model, sharded, train


def check_replicas_of_converted_models_are_refused() -> None:
    message = (
        "DistributedDataParallel does not see the gradients of low-precision parameters, so "
        "its 2 replicas would diverge; train a converted model in one process"
    )
    x = torch.ones(2, 64)
    before = nn.parallel.DistributedDataParallel(lpmm.convert(model()))
    after = nn.parallel.DistributedDataParallel(model())
    lpmm.convert(after.module)
    for replica in (before, after):
        with pytest.raises(BadValueError) as caught:
            replica(x)
        assert str(caught.value) == message
        with torch.no_grad():
            replica(x)
        replica.module(x).sum().backward()  # one's own
    with pytest.raises(BadTypeError) as sharded_:
        lpmm.convert(sharded(model()))
    assert str(sharded_.value) == (
        "parameter '0.weight' is a DTensor; only whole parameters can be converted"
    )


def check_data_parallel() -> None:
    alone, together = model(), model()
    parallel = nn.parallel.DistributedDataParallel(together)
    ours, theirs = AdamW4bit(alone.parameters()), AdamW4bit(parallel.parameters())
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        batches = [torch.randn(8, 64, generator=generator) for _ in range(here.world)]
        for optimizer in (ours, theirs):
            optimizer.zero_grad()
        (parallel(batches[here.rank]) - batches[here.rank]).square().mean().backward()
        theirs.step()
        # One process with the same gradients; collectives add in another order.
        for p, q in zip(alone.parameters(), together.parameters(), strict=True):
            p.grad = q.grad.clone()
        ours.step()
    for p, q in zip(alone.parameters(), together.parameters(), strict=True):
        assert torch.equal(p, q)
        everywhere = [torch.empty_like(p) for _ in range(here.world)]
        dist.all_gather(everywhere, q.detach())
        assert all(torch.equal(replica, p) for replica in everywhere)
    saved = theirs.state_dict()
    ours.load_state_dict(saved)
    assert str(ours.state_dict()) == str(saved)


ZERO: dict[str, tuple[type[QuantizedOptimizer], dict[str, Any]]] = {
    "8bit": (AdamW8bit, {"lr": 1e-2}),
    # A process numbers its own parameters, so random numbers are others than in one process.
    "to nearest": (AdamW, {"lr": 1e-2, "state_quantizers": "8bit-0.3"}),
    "4bit": (AdamW, {"lr": 1e-2, "min_quantized_size": 64, "state_quantizers": "paper-4bit"}),
    "LAMB": (LAMB, {"lr": 1e-2, "state_quantizers": "8bit-0.3"}),
    "rounding": (AdamW, {"lr": 1e-2, **options()}),
}


def zero(net: nn.Module, name: str, **more: Any) -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns of its own use of jit

    cls, defaults = ZERO[name]
    return ZeroRedundancyOptimizer(net.parameters(), optimizer_class=cls, **defaults, **more)


def zero_dtype(name: str) -> torch.dtype:
    return torch.bfloat16 if name == "rounding" else torch.float32


def check_zero_redundancy() -> None:
    """Save after three of five steps; later processes load the checkpoint."""
    for number, name in enumerate(ZERO):
        as_view = (number + here.world // 2) % 2 == 0  # on two processes where not on one and four
        net = model(zero_dtype(name))
        optimizer = zero(net, name, parameters_as_bucket_view=as_view)
        train(net, optimizer, range(3))
        optimizer.consolidate_state_dict(to=0)
        if here.rank == 0:
            # Copies: with views for parameters they are parts of larger storages.
            weights = {key: value.clone() for key, value in net.state_dict().items()}
            saved = {"model": weights, "optimizer": optimizer.state_dict()}
            torch.save(saved, here.folder / f"zero-{name}-{here.world}.pt")
        train(net, optimizer, range(3, 5))
        dist.barrier()
        # To nearest, each parameter goes as on one process; random numbers are those of its place
        # among its process's.
        for source in (1, 2, 4):
            same = name not in ("rounding", "8bit") or source == here.world
            if same and (path := here.folder / f"zero-{name}-{source}.pt").exists():
                resumed = zero_resumed(path, name, as_view)
                for p, q in zip(net.parameters(), resumed.parameters(), strict=True):
                    assert torch.equal(p, q), (name, source)


def zero_resumed(path: Path, name: str, as_view: bool) -> nn.Module:
    """A model resumed from a checkpoint, with an optimizer of other options at first."""
    saved = torch.load(path, weights_only=True)
    packed = copy.deepcopy(saved["optimizer"])
    net = model(zero_dtype(name))
    optimizer = zero(net, name, parameters_as_bucket_view=as_view)
    train(net, optimizer, range(1))
    with torch.no_grad():
        for key, value in net.state_dict().items():
            value.copy_(saved["model"][key])
    for group in optimizer.param_groups:
        group["lr"] = 9.0
    optimizer.load_state_dict(saved["optimizer"])
    # What torch keeps of it beside is read by nobody.
    optimizer.state.clear()
    # Before any step it can be saved again.
    optimizer.consolidate_state_dict(to=0)
    if here.rank == 0:
        again = optimizer.state_dict()
        assert str(again["state"]) == str(packed["state"])
        assert again["param_groups"][0]["lr"] == 1e-2
        alone = ZERO[name][0](model(zero_dtype(name)).parameters(), **ZERO[name][1])
        alone.load_state_dict(packed)
        assert str(alone.state_dict()["state"]) == str(packed["state"])
    train(net, optimizer, range(3, 5))
    assert all(
        isinstance(state["exp_avg"], (Tensor, QuantizedTensor))
        for state in optimizer.optim.state.values()
    )
    return net


def check_zero_redundancy_is_one_process() -> None:
    """A checkpoint of one process without ZeRO resumes with it."""
    for name in ("to nearest", "4bit", "LAMB"):
        full, parts = model(), model()
        cls, defaults = ZERO[name]
        ours, theirs = cls(full.parameters(), **defaults), zero(parts, name)
        train(full, ours, range(3))
        train(parts, theirs, range(3))
        theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
        train(full, ours, range(3, 5))
        train(parts, theirs, range(3, 5))
        for p, q in zip(full.parameters(), parts.parameters(), strict=True):
            assert torch.equal(p, q), name


def check_zero_redundancy_does_not_overlap() -> None:
    with pytest.raises(
        ValueError, match=r"no supported functional optimizer equivalent for .*8bit"
    ):
        zero(model(), "8bit", overlap_with_ddp=True)
