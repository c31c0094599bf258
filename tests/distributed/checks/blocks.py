"""Blocks, scales and rounding of shards are those of whole tensors."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
import torch._dynamo  # by DistributedDataParallel otherwise, in each rank
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

import qmaps
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.engines.support import NATIVE
from qmaps.ops.backends import use_backend
from qmaps.optim import SGD, AdamW, AdamW4bit, AdamW8bit
from tests.distributed.checks.common import (
    assert_same,
    here,
    model,
    pair,
    paper_4bit,
    sharded,
    train,
)


def check_blocks_are_those_of_the_whole() -> None:
    for make in (
        AdamW8bit,
        AdamW4bit,
        lambda p: SGD(p, lr=0.1, momentum=0.9, state_quantizers="8bit"),
        lambda p: AdamW8bit(p, reset_every=2),
    ):
        for engine in ("native", "reference"):
            with use_backend(engine):
                ours, theirs = pair(make, 3)
            assert_same(ours, theirs)
            # The engine takes the shards, all of them.
            count = len(theirs.param_groups[0]["params"])
            assert theirs.engine_counts().get("reference", 0) == (
                0 if engine == "native" else count
            )
            kinds = [type(v) for s in theirs.state.values() for v in s.values()]
            assert QuantizedTensor in kinds  # though a shard has less than min_quantized_size


def check_stochastic_rounding_is_that_of_the_whole() -> None:
    for specs in (
        "B64/DE@4s+sr + B128/linear@8u+sr",
        "B64/linear@4s+qsr + rank1/linear@8u+qsr",
    ):
        options = {"state_quantizers": specs, "stochastic_rounding": True, "seed": 3}
        make = lambda p, options=options: AdamW(p, **options)  # noqa: E731
        for engine, dtype in (("native", torch.float32), ("native", torch.bfloat16),
                              ("reference", torch.bfloat16)):  # fmt: skip
            with use_backend(engine):
                assert_same(*pair(make, 2, dtype))


def check_master_copies_are_those_of_the_whole() -> None:
    for engine in ("native", "reference"):
        with use_backend(engine):
            make = lambda p: AdamW8bit(p, lr=1e-2, master_weights=True)  # noqa: E731
            ours, theirs = pair(make, 3, torch.bfloat16)
        assert_same(ours, theirs)
        saved = theirs.state_dict()
        theirs.load_state_dict(ours.state_dict())
        assert_same(ours, theirs)
        theirs.load_state_dict(saved)
        assert_same(ours, theirs)
        assert "master_param" in next(iter(theirs.state.values()))


def check_split_master_weights_are_those_of_the_whole() -> None:
    for engine, form in product(("native", "reference"), ("bf16+8", "bf16+16")):
        with use_backend(engine):
            make = lambda p: AdamW8bit(p, lr=1e-2, master_weights=form)  # noqa: B023, E731
            ours, theirs = pair(make, 3, torch.bfloat16)
        assert_same(ours, theirs)
        saved = theirs.state_dict()
        remainder = saved["state"][0]["master_remainder"]
        # No int16: gloo and NCCL do not send it.
        assert remainder.dtype == (torch.int8 if form == "bf16+8" else torch.int32)
        assert torch.equal(
            remainder.full_tensor(), ours.state_dict()["state"][0]["master_remainder"]
        )
        theirs.load_state_dict(ours.state_dict())
        assert_same(ours, theirs)
        theirs.load_state_dict(saved)
        assert_same(ours, theirs)
        ours.load_state_dict(saved)
        assert_same(ours, theirs)


def check_uneven_shards_have_blocks_of_their_own() -> None:
    mesh = dist.init_device_mesh("cpu", (here.world,))
    generator = torch.Generator().manual_seed(0)
    for shape in ((50, 33), (7, 100), (3, 500), (1, 300), (1000,)):
        full = torch.randn(shape, generator=generator)
        param = nn.Parameter(distribute_tensor(full, mesh, [Shard(0)]))
        alone = nn.Parameter(param.to_local().clone())
        # Rounded to nearest: random numbers are those of an element's place in the whole tensor.
        ours = AdamW([param], state_quantizers="8bit-0.3", min_quantized_size=99)
        theirs = AdamW([alone], state_quantizers="8bit-0.3", min_quantized_size=0)
        for _ in range(3):
            grad = torch.randn(shape, generator=generator)
            param.grad = distribute_tensor(grad, mesh, [Shard(0)])
            alone.grad = param.grad.to_local().clone()
            ours.step()
            theirs.step()
        assert torch.equal(param.to_local(), alone)
        if not alone.numel():  # more processes than rows
            assert ours.state[param]["exp_avg"].packed.numel() == 0
            continue
        for name in ("exp_avg", "exp_avg_sq"):
            a, b = ours.state[param][name], theirs.state[alone][name]
            assert torch.equal(a.packed, b.packed)
            assert torch.equal(a.scales[0], b.scales[0])


SPANNING = (
    "rank1/linear@4u", "col/DE-0@8u", "row/DE-0@8u", "tensor/DE@8u", "B64&row/linear@8u",
    "B64x8/linear@8u", "rank1x8/linear@4u", "col&rank1/linear@4u+sr",
    "rank1xf16sq/linear@4u", "B64xe4m3/linear@4u", "colxe8m0/linear@8u", "bf16+sr",
)  # fmt: skip


def check_scales_that_span_shards_are_those_of_the_whole() -> None:
    for engine in ("native", "reference"):
        for spec in SPANNING:
            specs = {"exp_avg": "B64/DE@4s", "exp_avg_sq": spec}
            with use_backend(engine):
                ours, theirs = pair(lambda p, specs=specs: AdamW(p, state_quantizers=specs), 2)
            assert_same(ours, theirs)
            # The engine steps all shards with a supported format of scales.
            q, params = qmaps.quantizer(spec), theirs.param_groups[0]["params"]
            takes = NATIVE.supports(q.normalizer, q.map, (64, 64))
            matrices = sum(p.dim() == 2 for p in params)
            expected = len(params) if engine == "reference" else 0 if takes else matrices
            assert theirs.engine_counts().get("reference", 0) == expected, spec
        with use_backend(engine):
            assert_same(*pair(paper_4bit, 2))


def check_uneven_shards_share_scales() -> None:
    """Scales of shards of different sizes, some empty, shared by two processes' engines."""
    mesh = dist.init_device_mesh("cpu", (here.world,))
    generator = torch.Generator().manual_seed(0)
    grads = {}
    for shape in ((50, 33), (7, 100), (1, 300), (33, 1), (2, 3, 200), (5, 4096)):
        grads[shape] = [torch.randn(shape, generator=generator) for _ in range(2)]
    pairs = (
        {"exp_avg": "tensor/DE@8s", "exp_avg_sq": "rank1x8&col/linear@4u"},
        {"exp_avg": "bf16", "exp_avg_sq": "unscaled/e4m3@8u"},
    )
    for specs, split in product(pairs, (0, 1)):
        # The last process alone leaves the step to the reference.
        for engines in (("native",) * here.world, ("native",) * (here.world - 1) + ("reference",)):
            full = [nn.Parameter(grad[0].clone()) for grad in grads.values()]
            parts = [
                nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(split)])) for p in full
            ]
            optimizers = [
                AdamW(params, state_quantizers=specs, min_quantized_size=0)
                for params in (full, parts)
            ]
            for step in range(2):
                for p, q, grad in zip(full, parts, grads.values(), strict=True):
                    p.grad = grad[step].clone()
                    q.grad = distribute_tensor(grad[step], mesh, [Shard(split)])
                with use_backend(engines[here.rank]):
                    for optimizer in optimizers:
                        optimizer.step()
            assert_same(*optimizers)
            expected = 0 if engines[here.rank] == "native" else len(parts)
            assert optimizers[1].engine_counts().get("reference", 0) == expected


def check_one_collective_for_all_maxima() -> None:
    for engine in ("native", "reference"):
        with use_backend(engine):
            assert collectives() == [64 + 128], engine  # the columns of two matrices


def collectives() -> list[int]:
    """The sizes of a step's collectives."""
    parts = sharded(model())
    optimizer = paper_4bit(parts.parameters())
    train(parts, optimizer, range(2))
    calls: list[int] = []
    real = dist.all_reduce

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls.append(args[0].numel())
        return real(*args, **kwargs)

    dist.all_reduce = counting
    try:
        optimizer.step()
    finally:
        dist.all_reduce = real
    return calls


def check_nan_reaches_all_that_shares_its_scale() -> None:
    for engine in ("native", "reference"):
        with use_backend(engine):
            nan_reaches_all()


def nan_reaches_all() -> None:
    mesh = dist.init_device_mesh("cpu", (here.world,))
    for spec in ("rank1/linear@4u", "B64x8/linear@8u"):
        param = nn.Parameter(distribute_tensor(torch.ones(64, 32), mesh, [Shard(0)]))
        optimizer = AdamW([param], state_quantizers={"exp_avg_sq": spec}, min_quantized_size=0)
        grad = torch.ones(64, 32)
        grad[1, 5] = -float("nan")
        param.grad = distribute_tensor(grad, mesh, [Shard(0)])
        optimizer.step()
        v = optimizer.state[param]["exp_avg_sq"].dequantize()
        lost = v.isnan()
        if spec.startswith("rank1"):
            # Column 5 is the minimum of a row's maximum and NaN: NaN on every process.
            assert bool(lost[:, 5].all())
        else:
            assert bool(lost.all())
