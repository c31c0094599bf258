"""Other meshes and placements, and steps skipped or refused by all processes together."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch._dynamo  # by DistributedDataParallel otherwise, in each rank
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from qmaps.engines.sharding.shards import local, shard_of
from qmaps.errors import BadTypeError, BadValueError
from qmaps.optim import SOAP, Adafactor, AdamW, AdamW4bit, AdamW8bit, LAMB8bit, Muon
from tests.distributed.checks.common import (
    assert_same,
    cut,
    here,
    model,
    pair,
    paper_4bit,
    train,
)


def check_hybrid_sharding() -> None:
    mesh = dist.init_device_mesh("cpu", (2, here.world // 2), mesh_dim_names=("copies", "shards"))
    for make in (AdamW8bit, AdamW4bit, paper_4bit, lambda p: LAMB8bit(p, lr=1e-2)):
        ours, theirs = pair(make, 3, mesh=mesh)
        exact = not ours.takes_norms
        if exact:
            assert_same(ours, theirs)
        for p, q in zip(
            ours.param_groups[0]["params"], theirs.param_groups[0]["params"], strict=True
        ):
            torch.testing.assert_close(cut(q, p), local(q), rtol=1e-6, atol=1e-7)


def check_other_placements() -> None:
    """Columns, both dimensions, copies: placements of tensor parallelism."""
    line = dist.init_device_mesh("cpu", (here.world,))
    square = dist.init_device_mesh("cpu", (2, here.world // 2))
    generator = torch.Generator().manual_seed(0)
    full = torch.randn(64, 96, generator=generator)
    grads = [torch.randn(64, 96, generator=generator) for _ in range(3)]
    nearest = {"exp_avg": "row/DE@4s", "exp_avg_sq": "rank1/linear@4u"}
    random = {name: f"{spec}+sr" for name, spec in nearest.items()}
    for (mesh, placements), specs in product(
        (
            (line, [Shard(1)]),
            (line, [Replicate()]),
            (square, [Shard(0), Shard(1)]),
            (square, [Shard(1), Shard(0)]),
            (square, [Shard(0), Shard(0)]),
        ),
        (nearest, random),
    ):
        ours, theirs = nn.Parameter(full.clone()), nn.Parameter(
            distribute_tensor(full, mesh, placements)
        )  # fmt: skip
        optimizers = [
            AdamW([param], state_quantizers=specs, min_quantized_size=0, nonfinite="raise")
            for param in (ours, theirs)
        ]
        for grad in grads:
            ours.grad, theirs.grad = grad.clone(), distribute_tensor(grad, mesh, placements)
            for optimizer in optimizers:
                optimizer.step()
        assert_same(*optimizers)
        # The reference draws random numbers for cut rows.
        rows_are_cut = shard_of(theirs).runs is not None  # type: ignore[union-attr]
        assert optimizers[1].engine_counts().get("reference", 0) == (
            1 if specs is random and rows_are_cut else 0
        )


def check_skipping_and_raising_together() -> None:
    mesh = dist.init_device_mesh("cpu", (here.world,))
    for policy in ("skip", "raise"):
        param = nn.Parameter(distribute_tensor(torch.ones(64, 100), mesh, [Shard(0)]))
        optimizer = AdamW8bit([("w", param)], nonfinite=policy)
        grad = torch.ones(64, 100)
        grad[62, 7], grad[63, 1] = float("inf"), float("nan")  # on the last process alone
        param.grad = distribute_tensor(grad, mesh, [Shard(0)])
        if policy == "skip":
            optimizer.step()
            assert optimizer.skipped_steps == 1
        else:
            with pytest.raises(BadValueError) as caught:
                optimizer.step()
            assert str(caught.value) == (
                "the gradient of parameter 'w' holds 2 NaN or infinite elements, the first at "
                "flat index 6207; nonfinite='raise' allows only finite gradients"
            )
        assert torch.equal(param.to_local(), torch.ones_like(param.to_local()))


def check_what_shards_cannot_do_is_refused() -> None:
    mesh = dist.init_device_mesh("cpu", (here.world,))
    for make, message in (
        (lambda p: AdamW(p, state_quantizers={"exp_avg": "B128/quantile@4s"}),
         "exp_avg of parameter 'w' is sharded, but its quantizer B128/quantile@4s fits a codebook "
         "to the whole tensor; use a map with a fixed codebook"),
        (lambda p: AdamW(p, state_quantizers={"exp_avg": "lowrank4(B128/DE@8s)+B128/DE@4s"}),
         "exp_avg of parameter 'w' is sharded, but its quantizer lowrank4(B128/DE@8s)+B128/DE@4s "
         "keeps factors of whole matrices; use a quantizer without a low-rank part"),
        (lambda p: Muon(p, state_quantizers={"momentum_buffer": "B128/quantile@4s"}),
         "momentum_buffer of parameter 'w' is sharded, but its quantizer B128/quantile@4s fits a "
         "codebook to the whole tensor; use a map with a fixed codebook"),
        (lambda p: SOAP(p, state_quantizers={"exp_avg": "lowrank4(B128/DE@8s)+B128/DE@4s"}),
         "exp_avg of parameter 'w' is sharded, but its quantizer lowrank4(B128/DE@8s)+B128/DE@4s "
         "keeps factors of whole matrices; use a quantizer without a low-rank part"),
        (lambda p: Adafactor(p, apollo_rank=4),
         "low_variance of parameter 'w' is computed from the whole gradient, which a sharded "
         "parameter does not have"),
    ):  # fmt: skip
        param = nn.Parameter(distribute_tensor(torch.ones(64, 100), mesh, [Shard(0)]))
        optimizer = make([("w", param)])
        param.grad = distribute_tensor(torch.ones(64, 100), mesh, [Shard(0)])
        with pytest.raises(BadValueError) as caught:
            optimizer.step()
        assert str(caught.value) == message
        assert torch.equal(param.to_local(), torch.ones_like(param.to_local()))


def check_flat_parameters_are_refused() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    device = torch.device("cpu")
    for original in (False, True):
        net = FullyShardedDataParallel(model(), use_orig_params=original, device_id=device)
        with pytest.raises(BadTypeError) as caught:
            AdamW8bit(net.parameters())
        assert str(caught.value) == (
            "parameter 0 of group 0 is flattened by FullyShardedDataParallel (FSDP1), which does "
            "not save quantized states; shard the model by torch.distributed.fsdp.fully_shard "
            "(FSDP2)"
        )
        exact = AdamW(net.parameters())
        train(net, exact, range(2))
        FullyShardedDataParallel.optim_state_dict(net, exact)
