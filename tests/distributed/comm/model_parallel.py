"""Checks of split layers and sub-batches on every rank; see test_ranks.py."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import qmaps
from qmaps.distributed import comm
from qmaps.errors import BadTypeError, BadValueError, NonFiniteError
from reproduction.parallelism_2015._columns import ColumnParallelLinear
from reproduction.parallelism_2015._sub_batches import SubBatches
from tests.distributed.comm.data_parallel import Wire, refused, same_everywhere

SIZES = (11, 26, 9)


def plain() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(*SIZES[:2]), nn.ReLU(), nn.Linear(*SIZES[1:]))


def split(quantizer: str | None, **options: object) -> nn.Sequential:
    torch.manual_seed(5)
    traffic = comm.Traffic()
    return nn.Sequential(
        ColumnParallelLinear(*SIZES[:2], quantizer=quantizer, traffic=traffic, **options),
        nn.ReLU(),
        ColumnParallelLinear(*SIZES[1:], quantizer=quantizer, traffic=traffic),
    )


def data(seed: int, rows: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, SIZES[0], generator=generator)
    return x, torch.randint(SIZES[-1], (rows,), generator=generator)


def local_part(layer: ColumnParallelLinear, full: Tensor) -> Tensor:
    return full[slice(*layer.span)]


def split_layers_are_the_layers_of_one_device() -> None:
    single, parts = plain(), split(None)
    x, y = data(0)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    for model, x_of_model in zip((single, parts), inputs, strict=True):
        F.cross_entropy(model(x_of_model), y).backward()
    for number in (0, 2):
        for name in ("weight", "bias"):
            full, part = getattr(single[number], name), getattr(parts[number], name)
            torch.testing.assert_close(part.data, local_part(parts[number], full.data))
            torch.testing.assert_close(part.grad, local_part(parts[number], full.grad))
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad)
    assert parts[0].span[1] - parts[0].span[0] < SIZES[1]


def activations_and_errors_are_those_of_the_plain_quantizer() -> None:
    world = dist.get_world_size()
    spec = "B64/DE@4s+sr"
    layer = ColumnParallelLinear(6, 2 * world + 1, quantizer=spec, seed=9)
    q = qmaps.quantizer(spec)
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
    weights = [None] * world
    dist.all_gather_object(weights, (layer.weight.data, layer.bias.data))
    for step in range(2):
        x.grad = None
        actual = layer(x)
        expected = []
        for r, (weight, bias) in enumerate(weights):
            flat = F.linear(x.detach(), weight, bias).reshape(-1)
            key = qmaps.RoundingKey(9, 18, step, micro_batch=r, tensor=layer.number)
            expected.append(q.quantize(flat, key=key).dequantize().view(4, -1))
        assert torch.equal(actual, torch.cat(expected, -1))
        error = torch.randn(actual.shape, generator=torch.Generator().manual_seed(2))
        actual.backward(error)
        assert same_everywhere(x.grad)
        exact = torch.zeros_like(x)
        for (weight, _), (first, last) in zip(weights, layer.spans(), strict=True):
            exact = exact + error[:, first:last] @ weight
        off = float((x.grad - exact).norm() / exact.norm())
        assert 0 < off < 0.4, off


def bytes_are_counted() -> None:
    world = dist.get_world_size()
    layer = ColumnParallelLinear(512, 512, quantizer="B2048/tree@8s")
    x = torch.randn(64, 512, generator=torch.Generator().manual_seed(1)).requires_grad_()
    with Wire() as wire:
        layer(x).sum().backward()
    traffic = layer.traffic
    assert (traffic.sent, traffic.received) == (wire.sent, wire.received)
    numbers = 64 * 512 // world
    assert traffic.in_32_bits == 3 * 4 * numbers * (world - 1)
    assert 3.8 < traffic.ratio < 4
    assert traffic.exchanges == 2


def eight_bits_train_like_one_device() -> None:
    results = {}
    for name, model in (("one", plain()), ("32", split(None)), ("8", split("B2048/tree@8s"))):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(15):
            x, y = data(0)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        results[name] = float(loss.detach())
    assert results["one"] < 1.2 < math.log(SIZES[-1])
    assert abs(results["32"] - results["one"]) < 1e-4
    assert 0 < abs(results["8"] - results["one"]) < 0.03, results


class Below(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.only = nn.Linear(SIZES[0], SIZES[0])

    def forward(self, x: Tensor) -> Tensor:
        return self.only(x).tanh()


def sub_batches_give_the_gradients_of_one_device() -> None:
    """Data parallel below, split above: as one device on the batches of all."""
    rank, world = dist.get_rank(), dist.get_world_size()
    below, above = Below(), plain()
    everything = [data(r, 6) for r in range(world)]
    x, y = (torch.cat(part) for part in zip(*everything, strict=True))
    expected = F.cross_entropy(above(below(x)), y)
    expected.backward()
    for quantizer, near in ((None, 1e-5), ("B2048/tree@8s", 0.1)):
        for size in (None, 4, 100):
            bottom = DistributedDataParallel(Below())
            top = split(quantizer, sum_errors=False)
            schedule = SubBatches(quantizer, size=size)
            local, labels = everything[rank]
            actual = schedule.backward(
                bottom(local), labels, lambda part, y, top=top: F.cross_entropy(top(part), y)
            )
            assert abs(float(actual) - float(expected.detach())) < max(near, 1e-5), (
                quantizer,
                size,
            )
            pairs = [(bottom.module.only.weight.grad, below.only.weight.grad)]
            pairs += [
                (top[n].weight.grad, local_part(top[n], above[n].weight.grad)) for n in (0, 2)
            ]
            for got, wanted in pairs:
                off = float((got - wanted).norm() / wanted.norm())
                assert off < near, (quantizer, size, off)
            assert schedule.traffic.exchanges == world * (2 if size == 4 else 1)


def layers_above_may_step_after_each_sub_batch() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    bottom, top = DistributedDataParallel(Below()), split("B2048/tree@8s", sum_errors=False)
    schedule = SubBatches(size=3)
    upper = torch.optim.SGD(top.parameters(), lr=0.3)
    lower = torch.optim.SGD(bottom.parameters(), lr=0.3)
    steps, losses = [], []

    def after() -> None:
        upper.step()
        upper.zero_grad()
        steps.append(1)

    for _ in range(6):
        x, y = data(rank, 6)
        lower.zero_grad()
        losses.append(float(schedule.backward(
            bottom(x), y, lambda part, y: F.cross_entropy(top(part), y), after=after)))  # fmt: skip
        lower.step()
    assert len(steps) == 6 * 2 * world
    assert losses[-1] < 0.8 * losses[0]
    assert same_everywhere(torch.tensor(losses))


def faults_are_errors_on_all() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    last = world - 1
    layer = ColumnParallelLinear(4, world, quantizer="B64/DE@8s")
    n = layer.number
    rows = 3 + (rank == last)
    # Each rank uses the size of its own batch.
    peer, peer_size, size = (0, 3, 4) if rank == last else (last, 4, 3)
    refused(
        lambda: layer(torch.ones(rows, 4)),
        BadValueError,
        f"activations {n} have {peer_size} elements on rank {peer}, expected {size}; all ranks "
        "need the same batch",
    )
    x = torch.ones(3, 4)
    x[1] = math.nan if rank == last else 1.0
    refused(
        lambda: layer(x),
        NonFiniteError,
        f"activations {n} holds 1 NaN or infinite elements on rank {last}, the first at flat index "
        "1",
    )
    x = torch.ones(3, 4, requires_grad=True)
    y = layer(x)
    error = torch.ones_like(y)
    error[2, slice(*layer.span)] = math.inf if rank == last else 1.0
    try:
        y.backward(error)
    except NonFiniteError as caught:
        words = (
            f"errors {n} holds 4 NaN or infinite elements on rank {last}, the first at flat index 8"
        )
        assert str(caught) == words  # noqa: PT017 - no pytest in a rank
    else:
        raise AssertionError("no error")
    schedule = SubBatches("B64/DE@8s")
    refused(
        lambda: schedule.backward(torch.ones(rows, 4), torch.ones(rows), lambda x, _: x.sum()),
        BadValueError,
        f"sub-batch 0 has 12 elements on rank 0 and 16 on rank {last}; all ranks need the "
        "same number",
    )
    refused(
        lambda: ColumnParallelLinear(4, world - 1),
        BadValueError,
        f"out_features={world - 1} must be at least {world}, one for each rank",
    )
    refused(
        lambda: layer(torch.ones(3, 4, dtype=torch.float64)),
        BadTypeError,
        "x must be float32, got torch.float64",
    )


CHECKS = {
    check.__name__: check
    for check in (
        split_layers_are_the_layers_of_one_device,
        activations_and_errors_are_those_of_the_plain_quantizer,
        bytes_are_counted,
        eight_bits_train_like_one_device,
        sub_batches_give_the_gradients_of_one_device,
        layers_above_may_step_after_each_sub_batch,
        faults_are_errors_on_all,
    )
}
