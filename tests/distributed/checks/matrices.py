"""Rules that need full matrices and tensors, stepped in shards."""

from __future__ import annotations

import math
import weakref
from functools import partial
from typing import Any

import torch
import torch._dynamo  # by DistributedDataParallel otherwise, in each rank
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.engines.sharding.shards import local, shard_of
from qmaps.optim import (
    SM3,
    SOAP,
    Adafactor,
    Adafactor8bit,
    AdamW4bitFactor,
    AdamWFactor,
    LAMB8bit,
    LARS8bit,
    Muon,
    Muon4bit,
    Muon8bit,
    SOAP4bit,
    SOAP8bit,
)
from qmaps.optim.records import state_dims
from tests.distributed.checks.common import Make, assert_same, cut, floats, here, pair, params_of


def check_whole_tensor_rules() -> None:
    """Norms and factored statistics equal the full tensors', up to the order of float64 sums."""
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
                actual = floats(theirs.state[q][state])
                expected = shard.following(dims).cut(floats(ours.state[p][state]))
                assert tuple(actual.shape) == tuple(expected.shape), (name, state, shape)
                if not isinstance(theirs.state[q][state], QuantizedTensor):
                    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-9)


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
    if here.world == 4:
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
    """Counts the bytes of new tensors alive at the same time."""

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
    mesh = dist.init_device_mesh("cpu", (here.world,))
    values = torch.randn(8, 64, 64, generator=torch.Generator().manual_seed(0))
    for make in (Muon, Muon8bit, SOAP, SOAP8bit):
        full = [nn.Parameter(value.clone()) for value in values]
        parts = [nn.Parameter(distribute_tensor(value, mesh, [Shard(0)])) for value in values]
        peaks = []
        for params in (full, parts):
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
        sizes = tuple(
            here.world // math.prod(abs(n) for n in counts) if n < 0 else n for n in counts
        )
        mesh = dist.init_device_mesh("cpu", sizes)
        for make in (
            partial(Muon, state_quantizers={"momentum_buffer": "B16/DE@8s"}),
            partial(SOAP, precondition_frequency=1, state_quantizers="8bit"),
        ):
            full = [nn.Parameter(value[0].clone()) for value in values]
            parts = [
                nn.Parameter(distribute_tensor(
                    p.detach(), mesh, of_stacks if p.dim() == 3 else of_matrices
                ))
                for p in full
            ]  # fmt: skip
            optimizers = [
                make([{"params": params[::2]}, {"params": params[1::2]}], lr=0.1)
                for params in (full, parts)
            ]
            for step in (1, 2):
                for p, q, value in zip(full, parts, values, strict=True):
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
