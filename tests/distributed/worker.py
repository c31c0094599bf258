"""The checks that several processes run: real gloo collectives, many checks in one launch."""

from __future__ import annotations

import copy
import datetime
import math
import os
import sys
import time
import traceback
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # by DistributedDataParallel otherwise, in each rank
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import qmaps
from qmaps import lpmm
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.capture import Monitor, load
from qmaps.capture.conversion import convert_file
from qmaps.capture.monitor import ranks, switch_on, window
from qmaps.distributed.rows import by_rows
from qmaps.engines.sharding.shards import local, shard_of
from qmaps.engines.step import NUMBERS
from qmaps.engines.support import NATIVE
from qmaps.errors import (
    BadTypeError,
    BadValueError,
    CommunicationError,
    OutputError,
    StateWarning,
)
from qmaps.ops.backends import use_backend
from qmaps.optim import (
    LAMB,
    SGD,
    SM3,
    SOAP,
    Adafactor,
    Adafactor8bit,
    AdamW,
    AdamW4bit,
    AdamW4bitFactor,
    AdamW8bit,
    AdamWFactor,
    LAMB8bit,
    LARS8bit,
    Muon,
    Muon4bit,
    Muon8bit,
    QuantizedOptimizer,
    SOAP4bit,
    SOAP8bit,
)
from qmaps.optim.records import is_whole, state_dims

Make = Callable[..., QuantizedOptimizer]
RANK, WORLD = 0, 1  # until `start`
FOLDER = Path()


def model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Blocks of 256 fall on the borders of 2 and of 4 shards; so do those of the whole."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64, bias=False))
    return layers.to(dtype)


def paper_4bit(params: Any, **options: Any) -> AdamW:
    """An optimizer whose second moments have scales that span shards."""
    return AdamW(params, state_quantizers="paper-4bit", **options)


def sharded(net: nn.Sequential, mesh: Any = None) -> nn.Sequential:
    for layer in (net[0], net[2], net):
        fully_shard(layer, **({} if mesh is None else {"mesh": mesh}))
    return net


def train(net: nn.Module, optimizer: Any, steps: range) -> None:
    """The same batch on every process, so that means of gradients are exact."""
    dtype = local(next(net.parameters())).dtype
    for step in steps:
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(step)).to(dtype)
        net.zero_grad()
        (net(x) - x).square().mean().backward()
        for each in optimizer if isinstance(optimizer, list) else [optimizer]:
            each.step()


def floats(value: Tensor | QuantizedTensor) -> Tensor:
    return value.dequantize() if isinstance(value, QuantizedTensor) else value


def cut(param: Tensor, whole: Tensor) -> Tensor:
    """This process's part of a whole tensor that lies as the parameter does."""
    shard = shard_of(param)
    return whole if shard is None else shard.cut(whole)


def pair(
    make: Make, steps: int, dtype: torch.dtype = torch.float32, mesh: Any = None
) -> tuple[QuantizedOptimizer, QuantizedOptimizer]:
    """An optimizer of whole parameters and one of shards, after the same training."""
    whole, parts = model(dtype), sharded(model(dtype), mesh)
    ours, theirs = make(whole.parameters()), make(parts.parameters())
    train(whole, ours, range(steps))
    train(parts, theirs, range(steps))
    return ours, theirs


def params_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def assert_same(ours: QuantizedOptimizer, theirs: QuantizedOptimizer) -> None:
    """Parameters, codes and scales of shards are cut from those of the whole, or are all of it."""
    for p, q in zip(params_of(ours), params_of(theirs), strict=True):
        assert torch.equal(cut(q, p), local(q))
        for name, value in ours.state[p].items():
            found = theirs.state[q][name]
            assert type(found) is type(value), name
            if is_whole(ours, name):
                assert not found.shape[0] or torch.equal(floats(found), floats(value)), name
                continue
            if name in NUMBERS or not isinstance(value, QuantizedTensor):
                assert torch.equal(found, value if name in NUMBERS else cut(q, value)), name
                continue
            assert torch.equal(cut(q, value.codes()), found.codes()), name
            assert torch.equal(cut(q, value.dequantize()), found.dequantize()), name


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
            assert theirs._stepper.reference_count == (0 if engine == "native" else count)
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
    mesh = dist.init_device_mesh("cpu", (WORLD,))
    generator = torch.Generator().manual_seed(0)
    for shape in ((50, 33), (7, 100), (3, 500), (1, 300), (1000,)):
        whole = torch.randn(shape, generator=generator)
        param = nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)]))
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
            # The engine takes all shards whose format of scales it supports.
            q, params = qmaps.quantizer(spec), theirs.param_groups[0]["params"]
            takes = NATIVE.supports(q.normalizer, q.map, (64, 64))
            matrices = sum(p.dim() == 2 for p in params)
            expected = len(params) if engine == "reference" else 0 if takes else matrices
            assert theirs._stepper.reference_count == expected, spec
        with use_backend(engine):
            assert_same(*pair(paper_4bit, 2))


def check_uneven_shards_share_scales() -> None:
    """Shards of different sizes, some empty, that the engines of two processes share out."""
    mesh = dist.init_device_mesh("cpu", (WORLD,))
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
        for engines in (("native",) * WORLD, ("native",) * (WORLD - 1) + ("reference",)):
            whole = [nn.Parameter(each[0].clone()) for each in grads.values()]
            parts = [
                nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(split)])) for p in whole
            ]
            optimizers = [
                AdamW(params, state_quantizers=specs, min_quantized_size=0)
                for params in (whole, parts)
            ]
            for step in range(2):
                for p, q, each in zip(whole, parts, grads.values(), strict=True):
                    p.grad = each[step].clone()
                    q.grad = distribute_tensor(each[step], mesh, [Shard(split)])
                with use_backend(engines[RANK]):
                    for optimizer in optimizers:
                        optimizer.step()
            assert_same(*optimizers)
            left = 0 if engines[RANK] == "native" else len(parts)
            assert optimizers[1]._stepper.reference_count == left


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
    mesh = dist.init_device_mesh("cpu", (WORLD,))
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


def check_whole_tensor_rules() -> None:
    """Norms and factored statistics: those of the whole, but for the order of float64 sums."""
    makes: dict[str, Make] = {
        "LAMB": lambda p: LAMB8bit(p, lr=1e-2),
        "LARS": lambda p: LARS8bit(p, lr=1.0),
        "AdamWFactor": lambda p: AdamWFactor(p, lr=1e-2, state_quantizers=None),
        "AdamW4bitFactor": lambda p: AdamW4bitFactor(p, lr=1e-2),
        "Adafactor": lambda p: Adafactor(p, beta1=0.9, fira_margin=0.01),
        "CAME": lambda p: Adafactor8bit(p, beta1=0.9, beta3=0.99),
        "SM3": lambda p: SM3(p, lr=0.1),
    }
    for name, make in makes.items():
        ours, theirs = pair(make, 4)
        for p, q in zip(
            ours.param_groups[0]["params"], theirs.param_groups[0]["params"], strict=True
        ):
            torch.testing.assert_close(cut(q, p), local(q), rtol=1e-6, atol=1e-7, msg=name)
            for state, shape in ours.state_shapes(p, ours.param_groups[0]).items():
                dims = state_dims(ours, state, p.dim())
                shard = shard_of(q)
                assert shard is not None
                found = floats(theirs.state[q][state])
                expected = shard.following(dims).cut(floats(ours.state[p][state]))
                assert tuple(found.shape) == tuple(expected.shape), (name, state, shape)
                if not isinstance(theirs.state[q][state], QuantizedTensor):
                    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def matrices(params: Any) -> list[Tensor]:
    return [param for param in params if param.dim() == 2]


MATRIX_RULES: tuple[Make, ...] = (
    lambda p: Muon8bit(matrices(p), lr=0.02, adjust_lr_fn="match_rms_adamw"),
    lambda p: Muon4bit(
        matrices(p), lr=0.02, stochastic_rounding=True, seed=3, nonfinite="skip", reset_every=2
    ),
    lambda p: Muon8bit(matrices(p), lr=0.02, master_weights="bf16+16"),
    lambda p: Muon(
        matrices(p), lr=0.02, nesterov=False, state_quantizers={"momentum_buffer": "rank1/DE@8s"}
    ),
    lambda p: SOAP(p, precondition_frequency=2, maximize=True),
    lambda p: SOAP4bit(p, precondition_frequency=2, seed=3, reset_every=3, max_precond_dim=100),
)


def check_matrix_rules_are_those_of_the_whole() -> None:
    """Under ``fully_shard``, and its meshes of copies and shards on four processes."""
    for make in MATRIX_RULES:
        assert_same(*pair(make, 3, torch.bfloat16))
    if WORLD == 4:
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
        for make in MATRIX_RULES[::2]:
            assert_same(*pair(make, 3, torch.bfloat16, mesh))


def check_one_process_has_a_whole_state() -> None:
    ours, theirs = pair(lambda p: SOAP8bit(p, min_quantized_size=0), 1)
    for p, q in zip(params_of(ours), params_of(theirs), strict=True):
        for name, value in ours.state[p].items():
            sizes = torch.tensor(floats(theirs.state[q][name]).numel())
            if name != "step":
                dist.all_reduce(sizes)
                assert sizes == floats(value).numel(), name
    nbytes = torch.tensor(theirs.state_nbytes)
    assert nbytes == theirs.memory().nbytes < 0.7 * ours.state_nbytes
    dist.all_reduce(nbytes)
    assert nbytes == ours.state_nbytes


class Peak(TorchDispatchMode):
    """Counts the bytes of new tensors that are alive at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {t.untyped_storage()._cdata for t in tensors_of((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_of(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in self.storages | inputs:
                self.storages.add(storage._cdata)
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self.freed, storage._cdata, storage.nbytes())
        return result

    def freed(self, address: int, nbytes: int) -> None:
        self.storages.discard(address)
        self.now -= nbytes


def tensors_of(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if type(leaf) in (Tensor, nn.Parameter)]


def check_memory_is_that_of_one_matrix_more() -> None:
    mesh = dist.init_device_mesh("cpu", (WORLD,))
    values = torch.randn(8, 64, 64, generator=torch.Generator().manual_seed(0))
    for make in (Muon, Muon8bit, SOAP, SOAP8bit):
        whole = [nn.Parameter(value.clone()) for value in values]
        parts = [nn.Parameter(distribute_tensor(value, mesh, [Shard(0)])) for value in values]
        peaks = []
        for params in (whole, parts):
            optimizer = make(params, min_quantized_size=0)
            for param in params:
                param.grad = param.detach() * 0.1
            optimizer.step()
            with Peak() as peak:
                optimizer.step()
            peaks.append(peak.most)
        assert 0 < peaks[1] <= peaks[0] + 4 * 64 * 64, (make, peaks)


SHAPES = ((48, 64), (7, 128), (3, 64), (96, 64), (1, 64), (6, 32, 64), (5, 24, 64))
PLACES = {
    "rows": ((-1,), [Shard(0)], [Shard(0)]),
    "columns": ((-1,), [Shard(1)], [Shard(1)]),
    "square": ((2, -1), [Shard(0), Shard(1)], [Shard(0), Shard(2)]),
    "copies": ((-1, 2), [Replicate(), Shard(0)], [Replicate(), Shard(1)]),
    "only copies": ((-1,), [Replicate()], [Replicate()]),
}


def check_matrices_lie_anywhere() -> None:
    """Uneven and empty shards, columns, tiles, copies; stacks cut between and through matrices."""
    generator = torch.Generator().manual_seed(0)
    values = [[torch.randn(shape, generator=generator) for _ in range(3)] for shape in SHAPES]
    for counts, of_matrices, of_stacks in PLACES.values():
        sizes = tuple(WORLD // math.prod(abs(n) for n in counts) if n < 0 else n for n in counts)
        mesh = dist.init_device_mesh("cpu", sizes)
        for make in (
            partial(Muon, state_quantizers={"momentum_buffer": "B16/DE@8s"}),
            partial(SOAP, precondition_frequency=1, state_quantizers="8bit"),
        ):
            whole = [nn.Parameter(value[0].clone()) for value in values]
            parts = [
                nn.Parameter(distribute_tensor(
                    p.detach(), mesh, of_stacks if p.dim() == 3 else of_matrices
                ))
                for p in whole
            ]  # fmt: skip
            optimizers = [
                make([{"params": params[::2]}, {"params": params[1::2]}], lr=0.1)
                for params in (whole, parts)
            ]
            for step in (1, 2):
                for p, q, value in zip(whole, parts, values, strict=True):
                    p.grad = value[step].clone()
                    q.grad = distribute_tensor(value[step], mesh, q.placements)
                for optimizer in optimizers:
                    optimizer.step()
            assert_same(*optimizers)
            if isinstance(optimizers[0], SOAP):
                for state in (optimizers[1].state_dict(), optimizers[0].state_dict()):
                    optimizers[1].load_state_dict(state)
                    assert_same(*optimizers)
                optimizers[0].load_state_dict(optimizers[1].state_dict())
                assert_same(*optimizers)


def check_hybrid_sharding() -> None:
    mesh = dist.init_device_mesh("cpu", (2, WORLD // 2), mesh_dim_names=("copies", "shards"))
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
    """Columns, both dimensions, copies: what tensor parallelism makes of a matrix."""
    line = dist.init_device_mesh("cpu", (WORLD,))
    square = dist.init_device_mesh("cpu", (2, WORLD // 2))
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(64, 96, generator=generator)
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
        ours, theirs = nn.Parameter(whole.clone()), nn.Parameter(
            distribute_tensor(whole, mesh, placements)
        )  # fmt: skip
        optimizers = [
            AdamW([each], state_quantizers=specs, min_quantized_size=0, nonfinite="raise")
            for each in (ours, theirs)
        ]
        for grad in grads:
            ours.grad, theirs.grad = grad.clone(), distribute_tensor(grad, mesh, placements)
            for optimizer in optimizers:
                optimizer.step()
        assert_same(*optimizers)
        # Random numbers of rows that are cut are the reference's work.
        rows_are_cut = shard_of(theirs).runs is not None  # type: ignore[union-attr]
        assert optimizers[1]._stepper.reference_count == (
            1 if specs is random and rows_are_cut else 0
        )


def check_skipping_and_raising_together() -> None:
    mesh = dist.init_device_mesh("cpu", (WORLD,))
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
    mesh = dist.init_device_mesh("cpu", (WORLD,))
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


class Uneven(nn.Module):
    def __init__(self, mesh: Any = None) -> None:
        super().__init__()
        whole = torch.randn(50, 33, generator=torch.Generator().manual_seed(1))
        self.w = nn.Parameter(whole if mesh is None else distribute_tensor(whole, mesh, [Shard(0)]))


def options() -> dict[str, Any]:
    specs = {"exp_avg": "B128/DE@4s", "exp_avg_sq": "rank1/linear@4u+qsr"}
    return {"state_quantizers": specs, "seed": 3, "stochastic_rounding": True}


FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def saved_state(
    net: nn.Module, optimizer: Any, options: StateDictOptions | None = None
) -> dict[str, Any]:
    return {
        "model": get_model_state_dict(net),
        "optimizer": get_optimizer_state_dict(net, optimizer, options=options),
    }


def load_saved(
    net: nn.Module, optimizer: Any, folder: Path, options: StateDictOptions | None = None
) -> None:
    state = saved_state(net, optimizer, options)
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(net, state["model"])
    set_optimizer_state_dict(net, optimizer, state["optimizer"], options=options)


def check_saves() -> None:
    save_matrices(sharded(model(torch.bfloat16)), WORLD)
    parts = sharded(model(torch.bfloat16))
    optimizer = AdamW(parts.parameters(), lr=1e-2, **options())
    train(parts, optimizer, range(3))
    before = {
        (p, name): value.clone()
        for p, state in optimizer.state.items()
        for name, value in state.items()
        if isinstance(value, QuantizedTensor)
    }
    flat = saved_state(parts, optimizer, FLAT)
    assert {type(x) for key, x in flat["optimizer"].items() if key.startswith("state.")} <= {
        Tensor, DTensor, int, bool
    }  # fmt: skip
    dcp.save(flat, checkpoint_id=FOLDER / f"flat{WORLD}")
    dcp.save(saved_state(parts, optimizer), checkpoint_id=FOLDER / f"from{WORLD}")
    # Back to where it was: on as many processes everything is as it was.
    for folder, form in ((f"from{WORLD}", None), (f"flat{WORLD}", FLAT)):
        train(parts, optimizer, range(3, 4))
        load_saved(parts, optimizer, FOLDER / folder, form)
        for (p, name), old in before.items():
            value = optimizer.state[p][name]
            assert all(map(torch.equal, (value.packed, *value.scales), (old.packed, *old.scales)))
    if RANK == 0:
        nested, flattened = load(FOLDER / f"from{WORLD}"), load(FOLDER / f"flat{WORLD}")
        assert flattened.fingerprint() == nested.fingerprint()

    mesh = dist.init_device_mesh("cpu", (WORLD,))
    uneven = Uneven(mesh)
    optimizer = AdamW8bit(uneven.parameters(), min_quantized_size=0)
    for step in range(3):
        grad = torch.randn(50, 33, generator=torch.Generator().manual_seed(step))
        uneven.w.grad = distribute_tensor(grad, mesh, [Shard(0)])
        optimizer.step()
    dcp.save(saved_state(uneven, optimizer), checkpoint_id=FOLDER / f"uneven{WORLD}")
    before_w = {name: floats(optimizer.state[uneven.w][name]) for name in ("exp_avg", "exp_avg_sq")}
    shard = shard_of(uneven.w)
    assert shard is not None
    whole = {name: shard.distributed(value).full_tensor() for name, value in before_w.items()}
    load_saved(uneven, optimizer, FOLDER / f"uneven{WORLD}")
    for name, value in before_w.items():
        assert torch.equal(floats(optimizer.state[uneven.w][name]), value), name
    if RANK == 0:
        torch.save(whole, FOLDER / f"uneven{WORLD}.pt")


def check_converted_folders() -> None:
    """Shards of torch's AdamW go on in 4 bits, and back."""
    parts = sharded(model())
    exact = torch.optim.AdamW(parts.parameters(), lr=1e-2)
    train(parts, exact, range(3))
    dcp.save(saved_state(parts, exact), checkpoint_id=FOLDER / "exact")
    if RANK == 0:
        (report,) = convert_file(
            FOLDER / "exact", FOLDER / "4bit", to="qmaps", states="4bit", distributed="optimizer"
        )
        assert {row.how for row in report.states} == {"quantized", "same values"}
    dist.barrier()
    exact.zero_grad()  # with gradients, torch would not make states to load into
    small = AdamW4bit(parts.parameters(), lr=1.0, seed=8)
    state = {"optimizer": get_optimizer_state_dict(parts, small)}
    options_stay = DefaultLoadPlanner(allow_partial_load=True)
    dcp.load(state, checkpoint_id=FOLDER / "4bit", planner=options_stay)
    set_optimizer_state_dict(parts, small, state["optimizer"])
    assert [small.param_groups[0][name] for name in ("lr", "seed")] == [1e-2, 8]
    converted = load(FOLDER / "4bit")
    kinds = set()
    for name, p in parts.named_parameters():
        for key, value in small.state[p].items():
            if key == "step":
                assert value == 3
                continue
            kinds.add(type(value))
            assert torch.equal(local(floats(value)), cut(p, converted.tensor(name, key))), name
    assert QuantizedTensor in kinds
    train(parts, small, range(3, 4))
    small.zero_grad()

    dcp.save(saved_state(parts, small), checkpoint_id=FOLDER / "small")
    if RANK == 0:
        convert_file(FOLDER / "small", FOLDER / "back", to="torch", distributed="optimizer")
    dist.barrier()
    state = {"optimizer": get_optimizer_state_dict(parts, exact)}
    options_stay = DefaultLoadPlanner(allow_partial_load=True)
    dcp.load(state, checkpoint_id=FOLDER / "back", planner=options_stay)
    set_optimizer_state_dict(parts, exact, state["optimizer"])
    decoded = load(FOLDER / "small")
    for name, p in parts.named_parameters():
        assert exact.state[p]["step"] == 4
        for key in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(exact.state[p][key].full_tensor(), decoded.tensor(name, key))


def go_on(net: nn.Module, source: str) -> None:
    """Load what others saved after three steps, and go on as one process would have done."""
    with torch.no_grad():
        for p in net.parameters():
            local(p).zero_()
    optimizer = AdamW(net.parameters(), lr=1.0, **{**options(), "seed": 8})
    load_saved(net, optimizer, FOLDER / source)
    train(net, optimizer, range(3, 5))
    whole = model(torch.bfloat16)
    expected = AdamW(whole.parameters(), lr=1e-2, **options())
    train(whole, expected, range(5))
    assert_same(expected, optimizer)
    assert optimizer.param_groups[0]["lr"] == 1e-2


def uneven_values(net: Uneven, source: str) -> None:
    """Blocks that begin elsewhere are encoded anew: one rounding away."""
    optimizer = AdamW8bit(net.parameters(), min_quantized_size=0)
    load_saved(net, optimizer, FOLDER / source)
    whole = torch.load(FOLDER / f"{source}.pt", weights_only=True)
    for name, value in whole.items():
        expected, found = cut(net.w, value), floats(optimizer.state[net.w][name])
        # Neighbours in 8 bits are an eighth of an octave apart.
        assert bool(((found - expected).abs() <= 0.13 * value.abs().max()).all()), name


def of_matrices(net: nn.Sequential, lr: float, seed: int) -> list[QuantizedOptimizer]:
    first, bias, second = net.parameters()
    return [
        Muon4bit([first], lr=lr, seed=seed, master_weights=True),
        SOAP4bit([bias, second], lr=lr, seed=seed, precondition_frequency=2),
    ]


def save_matrices(net: nn.Sequential, ranks: int, **options: Any) -> None:
    optimizers = of_matrices(net, 1e-2, 3)
    train(net, optimizers, range(3))
    dcp.save(saved_state(net, optimizers), checkpoint_id=FOLDER / f"matrices{ranks}", **options)


def go_on_with_matrices(net: nn.Sequential, source: int) -> None:
    with torch.no_grad():
        for p in net.parameters():
            local(p).zero_()
    optimizers = of_matrices(net, 1.0, 8)
    load_saved(net, optimizers, FOLDER / f"matrices{source}")
    train(net, optimizers, range(3, 5))
    whole = model(torch.bfloat16)
    expected = of_matrices(whole, 1e-2, 3)
    train(whole, expected, range(5))
    for ours, theirs in zip(expected, optimizers, strict=True):
        assert_same(ours, theirs)
        assert theirs.param_groups[0]["lr"] == 1e-2


def check_loads_from_1() -> None:
    go_on(sharded(model(torch.bfloat16)), "from1")
    go_on_with_matrices(sharded(model(torch.bfloat16)), 1)


def check_loads_from_2() -> None:
    go_on(sharded(model(torch.bfloat16)), "from2")
    go_on_with_matrices(sharded(model(torch.bfloat16)), 2)
    uneven_values(Uneven(dist.init_device_mesh("cpu", (WORLD,))), "uneven2")


def check_full_state_dicts() -> None:
    """Gathered to whole tensors, and loaded by one process and by all."""
    for make in (AdamW4bit, paper_4bit, SOAP8bit):
        full_state_dicts(make)


def full_state_dicts(make: Make) -> None:
    parts, whole = sharded(model()), model()
    ours, theirs = make(whole.parameters()), make(parts.parameters())
    train(whole, ours, range(2))
    train(parts, theirs, range(2))
    gathered = get_optimizer_state_dict(
        parts, theirs, options=StateDictOptions(full_state_dict=True)
    )
    alone = model()
    alone.load_state_dict(whole.state_dict())
    again = make(alone.parameters())
    set_optimizer_state_dict(alone, again, gathered)
    assert_same(ours, again)
    # What one process has saved with torch.save, each process cuts its part of.
    for saved in (ours.state_dict(), in_rows(ours)):
        theirs.load_state_dict(saved)
        assert_same(ours, theirs)
    # A checkpoint in 32 bits, quantized by all together.
    exact = (SOAP if make is SOAP8bit else AdamW)(whole.parameters(), state_quantizers=None)
    exact.load_state_dict({**ours.state_dict(), "param_groups": exact.state_dict()["param_groups"]})
    plain = {
        number: {name: floats(value) for name, value in exact.state[p].items()}
        for number, p in enumerate(whole.parameters())
    }
    for each in (ours, theirs):
        each.load_state_dict({"state": plain, "param_groups": each.state_dict()["param_groups"]})
    assert_same(ours, theirs)


def in_rows(optimizer: QuantizedOptimizer) -> dict[str, Any]:
    with by_rows():
        return optimizer.state_dict()


def check_saves_alone() -> None:
    """One process without shards, for others with."""
    net = model(torch.bfloat16)
    optimizer = AdamW(net.parameters(), lr=1e-2, **options())
    train(net, optimizer, range(3))
    with by_rows():
        dcp.save(saved_state(net, optimizer), checkpoint_id=FOLDER / "from1", no_dist=True)
        save_matrices(model(torch.bfloat16), 1, no_dist=True)


def check_loads_alone() -> None:
    """One process without shards, from others with."""
    with by_rows():
        go_on(model(torch.bfloat16), "from2")
        go_on_with_matrices(model(torch.bfloat16), 2)
        uneven_values(Uneven(), "uneven2")


def check_memory_counts_what_is_here() -> None:
    parts = sharded(model())
    optimizer = AdamW8bit(parts.parameters())
    predicted = optimizer.memory()
    train(parts, optimizer, range(1))
    found = optimizer.memory()
    assert found.nbytes == predicted.nbytes == optimizer.state_nbytes
    assert found.numel == sum(local(p).numel() for p in parts.parameters())


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
        batches = [torch.randn(8, 64, generator=generator) for _ in range(WORLD)]
        for optimizer in (ours, theirs):
            optimizer.zero_grad()
        (parallel(batches[RANK]) - batches[RANK]).square().mean().backward()
        theirs.step()
        # One process with the same gradients, which collectives add up in an order of theirs.
        for p, q in zip(alone.parameters(), together.parameters(), strict=True):
            p.grad = q.grad.clone()
        ours.step()
    for p, q in zip(alone.parameters(), together.parameters(), strict=True):
        assert torch.equal(p, q)
        everywhere = [torch.empty_like(p) for _ in range(WORLD)]
        dist.all_gather(everywhere, q.detach())
        assert all(torch.equal(each, p) for each in everywhere)
    saved = theirs.state_dict()
    ours.load_state_dict(saved)
    assert str(ours.state_dict()) == str(saved)


def four_bit(net: nn.Module) -> AdamW:
    return AdamW(net.named_parameters(), lr=1e-2, state_quantizers="B64/DE@4s + B64/DE@4u")


def monitored(net: nn.Module, group: Any, out: str | None = None, **options: Any) -> Monitor:
    optimizer = four_bit(net)
    monitor = Monitor(
        optimizer,
        None if out is None else FOLDER / out,
        **{"every": 2, "sample": 10**5, "thresholds": None, "process_group": group, **options},
    )
    train(net, optimizer, range(4))
    monitor.close()
    return monitor


def check_one_monitor_for_all_shards() -> None:
    gathers: list[int] = []
    real = dist.all_gather

    def counting(*args: Any, **kwargs: Any) -> Any:
        gathers.append(args[1].numel())
        return real(*args, **kwargs)

    dist.all_gather = counting
    try:
        with pytest.warns(StateWarning) if RANK == 0 else nullcontext() as told:
            strict = qmaps.capture.Thresholds(sqnr_db=100.0, saturated_share=None)
            group = dist.group.WORLD
            parts = monitored(sharded(model()), group, "shards.csv", thresholds=strict)
    finally:
        dist.all_gather = real
    # To find that rows are new, then those of the first step measured; one in each step later.
    assert gathers == [13, 5 * 13, 5 * 13]
    alone = monitored(model(), None)
    exact = ("parameter", "state", "quantizer", "numel", "held_share", "moved_share")
    exact += ("stalled_share", "stuck_share", "saturated_share", "zero_point_share")
    for row, whole in zip(parts.rows, alone.rows, strict=True):
        assert str([row[name] for name in exact]) == str([whole[name] for name in exact])
        for name in ("sqnr_db", "update_mean_rel_error"):
            assert row[name] == pytest.approx(whole[name], rel=1e-9, nan_ok=True), name
        ours, theirs = row["update_median_rel_error"], whole["update_median_rel_error"]
        assert ours >= theirs or str(ours) == str(theirs) == "nan"
    # A file switches the same one on.
    settings = FOLDER / f"monitor{RANK}.yaml"
    settings.write_text(f"{{out: {FOLDER}/file.csv, every: 2, sample: 100000, thresholds: null}}")
    handle = switch_on(settings)
    net = sharded(model())
    train(net, four_bit(net), range(4))
    handle.remove()
    dist.barrier()
    assert (FOLDER / "file.csv").read_text() == (FOLDER / "shards.csv").read_text()
    if RANK == 0:
        (text,) = (
            str(each.message)
            for each in told
            if "sqnr_db" in str(each.message) and "'exp_avg'" in str(each.message)
        )
        assert " at step 2 is below 100, as in 2 of 2 parameters;" in text


def check_a_monitor_of_replicas_is_that_of_one() -> None:
    parallel = nn.parallel.DistributedDataParallel(model())
    rows = monitored(parallel, dist.group.WORLD).rows
    expected = [
        {"step": 4, **row, "parameter": f"module.{row['parameter']}"}
        for row in monitored(model(), None).rows
    ]
    assert list(map(sorted_text, rows)) == list(map(sorted_text, expected))


def sorted_text(row: dict[str, Any]) -> str:
    return str(sorted(row.items()))


def check_monitors_that_differ_are_refused() -> None:
    """With one line on every rank, before the first step."""
    group, out = dist.group.WORLD, FOLDER / "taken.csv"
    if RANK == 0:
        out.write_text("something else\n")
    dist.barrier()
    nothing = BadValueError if RANK else OutputError
    prefix = "rank 0: " if RANK else ""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(ranks, "__version__", f"{RANK}.0")
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (BadValueError, "qmaps=1.0 on rank 1 must be 0.0, as on rank 0", {}),
        (BadValueError, "every=3 on rank 1 must be 2, as on rank 0", {"every": 2 + RANK}),
        (
            nothing,
            f"{prefix}out={str(out)!r} exists and is no file of a monitor with these columns; give "
            "another file",
            {"out": out},
        ),
    ]
    for error, message, options in cases:
        optimizer = AdamW8bit(model().parameters())
        given = {"out": None, "every": 2, "process_group": group, **options}
        with pytest.raises(error) as caught:
            Monitor(optimizer, **given)
        assert str(caught.value) == message
        assert not optimizer._optimizer_step_pre_hooks
        monkeypatch.undo()
    # Each rank would skip steps of its own.
    optimizer = AdamW8bit([list(model().named_parameters())[2 * RANK]], nonfinite="skip")
    with pytest.raises(BadValueError) as caught:
        Monitor(optimizer, None, process_group=group)
    assert str(caught.value) == (
        "nonfinite='skip' may skip steps on some ranks only, since their parameters differ; a "
        "monitor of all ranks needs nonfinite='propagate' or 'raise'"
    )


def check_monitors_of_ranks_with_other_parameters() -> None:
    group = dist.group.WORLD
    # Each matrix of SOAP has one owner.
    rows = []
    for net, of in ((sharded(model()), group), (model(), None)):
        optimizer = SOAP8bit(matrices(net.parameters()), min_quantized_size=0)
        with Monitor(optimizer, None, every=2, thresholds=None, process_group=of) as monitor:
            train(net, optimizer, range(2))
        rows.append(list(monitor.rows))
    assert rows[0]
    assert sorted(map(sorted_text, rows[0])) == sorted(map(sorted_text, rows[1]))
    # The second rank has no quantized states, and then none has.
    params = [nn.Parameter(torch.ones(128, 64)), nn.Parameter(torch.ones(3))]
    optimizer = AdamW8bit([params[RANK]])
    with Monitor(optimizer, None, every=1, thresholds=None, process_group=group) as monitor:
        for _ in range(2):
            params[RANK].grad = torch.ones_like(params[RANK])
            optimizer.step()
    assert {(row["step"], row["parameter"]) for row in monitor.rows} == {(2, "group0.param0")}
    none = (
        "optimizer=AdamW8bit has no quantized states; a monitor needs at least one "
        "(state_quantizers, min_quantized_size)"
    )
    refused(BadValueError, none, AdamW8bit([params[1]]))
    shape = (128, 64 + RANK)
    refused(
        BadValueError,
        "group0.param0 has shape (128, 65) on rank 1 and (128, 64) on rank 0; parameters that "
        "differ over ranks need names (names=model)",
        AdamW8bit([nn.Parameter(torch.ones(shape))]),
    )


def check_errors_of_one_rank_reach_the_others() -> None:
    def fails(*_: Any) -> Any:
        return {0: True}[RANK]

    param = nn.Parameter(torch.ones(128, 64))
    param.grad = torch.ones_like(param)
    optimizer = AdamW8bit([param])
    error, message = (KeyError, "1") if RANK else (BadValueError, "rank 1: KeyError: 1")
    refused(error, message, optimizer, parameters=fails)
    # While measuring, before it, and after it on the rank that logs: all raise at the next report.
    for place, rank, steps in (("_measure_moments", 1, 2), ("_watched", 1, 2), ("log", 0, 4)):

        def raises(*_: Any, rank: int = rank) -> None:
            if rank == RANK:
                raise KeyError("two\nlines")

        options: dict[str, Any] = {"log": raises} if place == "log" else {}
        optimizer, monkeypatch = AdamW8bit([param]), pytest.MonkeyPatch()
        if rank == 1 == RANK:
            monkeypatch.setattr(window, place, raises)
        monitor = Monitor(optimizer, None, every=2, process_group=dist.group.WORLD, **options)
        for _ in range(steps - 1):
            optimizer.step()
        with pytest.raises(CommunicationError) as caught:
            optimizer.step()
        assert str(caught.value) == f"rank {rank}: KeyError: 'two\\nlines'"
        monkeypatch.undo()
        optimizer.step()
        optimizer.step()
        with pytest.raises(KeyError) if place == "log" and RANK == 0 else nullcontext():
            monitor.close()
        monitor.close()


def refused(error: type[Exception], message: str, optimizer: Any, **options: Any) -> None:
    with pytest.raises(error) as caught:
        Monitor(optimizer, None, process_group=dist.group.WORLD, **options)
    assert str(caught.value) == message


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

    cls, given = ZERO[name]
    return ZeroRedundancyOptimizer(net.parameters(), optimizer_class=cls, **given, **more)


def zero_dtype(name: str) -> torch.dtype:
    return torch.bfloat16 if name == "rounding" else torch.float32


def check_zero_redundancy() -> None:
    """Saved by these processes after three of five steps; loaded by all that come later."""
    for number, name in enumerate(ZERO):
        as_view = (number + WORLD // 2) % 2 == 0  # on two processes where not on one and four
        net = model(zero_dtype(name))
        optimizer = zero(net, name, parameters_as_bucket_view=as_view)
        train(net, optimizer, range(3))
        optimizer.consolidate_state_dict(to=0)
        if RANK == 0:
            # Copies: with views for parameters they are parts of larger storages.
            weights = {key: value.clone() for key, value in net.state_dict().items()}
            saved = {"model": weights, "optimizer": optimizer.state_dict()}
            torch.save(saved, FOLDER / f"zero-{name}-{WORLD}.pt")
        train(net, optimizer, range(3, 5))
        dist.barrier()
        # To nearest, each parameter goes as on one process; random numbers are those of its place
        # among its process's.
        for source in (1, 2, 4):
            same = name not in ("rounding", "8bit") or source == WORLD
            if same and (path := FOLDER / f"zero-{name}-{source}.pt").exists():
                resumed = zero_resumed(path, name, as_view)
                for p, q in zip(net.parameters(), resumed.parameters(), strict=True):
                    assert torch.equal(p, q), (name, source)


def zero_resumed(path: Path, name: str, as_view: bool) -> nn.Module:
    """A model that goes on from a checkpoint, with an optimizer of other options at first."""
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
    if RANK == 0:
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
    """And a checkpoint of one process without ZeRO goes on with it."""
    for name in ("to nearest", "4bit", "LAMB"):
        whole, parts = model(), model()
        cls, given = ZERO[name]
        ours, theirs = cls(whole.parameters(), **given), zero(parts, name)
        train(whole, ours, range(3))
        train(parts, theirs, range(3))
        theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
        train(whole, ours, range(3, 5))
        train(parts, theirs, range(3, 5))
        for p, q in zip(whole.parameters(), parts.parameters(), strict=True):
            assert torch.equal(p, q), name


def check_zero_redundancy_does_not_overlap() -> None:
    with pytest.raises(
        ValueError, match=r"no supported functional optimizer equivalent for .*8bit"
    ):
        zero(model(), "8bit", overlap_with_ddp=True)


def run(rank: int, group: int, names: list[str]) -> int:
    global RANK
    RANK = rank
    torch.set_num_threads(1)
    if WORLD:
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(str(FOLDER / f"store{group}"), WORLD),
            rank=RANK,
            world_size=WORLD,
            timeout=datetime.timedelta(seconds=40),
        )
    for name in names:
        begin = time.perf_counter()
        try:
            globals()[f"check_{name}"]()
        except BaseException:
            traceback.print_exc()
            print("failed", name, flush=True)
            return 1
        print(f"passed {name} {time.perf_counter() - begin:.1f} s", flush=True)
    if WORLD:
        dist.barrier()
        dist.destroy_process_group()
    return 0


def start(folder: str, *groups: str) -> int:
    """Fork the processes of each group: what they import is imported once."""
    global FOLDER, WORLD
    FOLDER = Path(folder)
    for group, given in enumerate(groups):
        ranks, _, names = given.partition(":")
        WORLD = int(ranks)
        for rank in range(max(WORLD, 1)):
            if os.fork() == 0:
                path = FOLDER / f"group{group}-rank{rank}.txt"
                output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(output, 1)
                os.dup2(output, 2)
                os._exit(run(rank, group, names.split(",")))
        for _ in range(max(WORLD, 1)):
            _, status = os.wait()
            if status:
                time.sleep(1)  # the others may say more
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(start(*sys.argv[1:]))
