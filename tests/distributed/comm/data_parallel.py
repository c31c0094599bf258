"""Checks of hooks and averages on every rank; see test_ranks.py."""

from __future__ import annotations

import math
import threading

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import qmaps
from qmaps.algebra.philox import RoundingKey
from qmaps.distributed import comm
from qmaps.distributed.comm.exchange import GATHER
from qmaps.errors import BadValueError, NonFiniteError
from reproduction.parallelism_2015._one_bit import one_bit_hook

SPECS = ("B64/tree@8s", "tensor/linear0@3s", "B128x8/nf4@4s", "B64/DE@2s+sr", "row/linear@6s",
         "B64&B512/mantissa@8s")  # fmt: skip


def tensor_of(rank: int, numel: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randn(numel, generator=generator) * (1 + rank)


def simulated(xs: list[Tensor], spec: str, seed: int, step: int, number: int) -> Tensor:
    """The average of all ranks' tensors, by the plain quantizer alone."""
    q, world, numel = qmaps.quantizer(spec), len(xs), xs[0].numel()
    size = math.ceil(numel / world)
    result = []

    def sent(x: Tensor, purpose: int, rank: int, start: int) -> Tensor:
        key = qmaps.RoundingKey(seed, purpose, step, micro_batch=rank, tensor=number, offset=start)
        return q.quantize(x, key=key).dequantize() if x.numel() else x

    for owner in range(world):
        start, end = min(owner * size, numel), min((owner + 1) * size, numel)
        total = torch.zeros(end - start)
        for rank, x in enumerate(xs):
            part = x[start:end]
            total = total + (part if rank == owner else sent(part, 16, rank, start))
        result.append(sent(total / world, 17, owner, start))
    return torch.cat(result)


def averages_are_those_of_the_plain_quantizer() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for spec in SPECS:
        for numel in (1, 5, 1000):
            xs = [tensor_of(r, numel) for r in range(world)]
            actual = comm.average(xs[rank], spec, seed=7, step=3, number=2)
            expected = simulated(xs, spec, 7, 3, 2)
            assert torch.equal(actual, expected), (spec, numel, actual, expected)
    empty = comm.average(torch.empty(0, 3), "B64/tree@8s")
    assert empty.shape == (0, 3)
    half = comm.average(torch.full((2, 3), 1.5, dtype=torch.bfloat16), "tensor/linear0@8s")
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, torch.full((2, 3), 1.5, dtype=torch.bfloat16))


def noise_differs_between_ranks_and_steps() -> None:
    x = torch.full((4000,), 0.3).index_fill(0, torch.tensor([0]), 1.0)
    spec = "tensor/linear0@2s+sr"
    results = [comm.average(x, spec, step=step) for step in range(8)]
    assert not torch.equal(results[0], results[1])
    assert torch.equal(results[0], comm.average(x, spec, step=0))
    assert abs(float(torch.stack(results)[:, 1:].mean()) - 0.3) < 0.02


class Wire:
    """Counts the bytes sent and received by torch's collectives on this rank."""

    def __enter__(self) -> Wire:
        self.sent = self.received = 0
        self.kept = getattr(dist, GATHER), dist.all_to_all_single
        gather, swap = self.kept
        rank, peers = dist.get_rank(), dist.get_world_size() - 1

        def counted_gather(into: Tensor, x: Tensor, **options: object) -> object:
            self.sent += x.nbytes * peers
            self.received += into.nbytes - x.nbytes
            return gather(into, x, **options)

        def counted_swap(into: Tensor, x: Tensor, *splits: list[int], **options: object) -> object:
            incoming, outgoing = splits
            assert incoming[rank] == outgoing[rank] == 0  # nothing goes to oneself
            self.sent += x.nbytes
            self.received += into.nbytes
            return swap(into, x, *splits, **options)

        setattr(dist, GATHER, counted_gather)
        dist.all_to_all_single = counted_swap
        return self

    def __exit__(self, *_: object) -> None:
        setattr(dist, GATHER, self.kept[0])
        dist.all_to_all_single = self.kept[1]


def bytes_are_those_on_the_wire() -> None:
    world = dist.get_world_size()
    traffic = comm.Traffic()
    for spec, times in (("B2048/tree@8s", 4), ("B2048/DE@4s", 8), ("B2048/DE@2s", 16)):
        traffic.reset()
        with Wire() as wire:
            comm.average(tensor_of(0, 65536), spec, traffic=traffic)
        assert (traffic.sent, traffic.received) == (wire.sent, wire.received)
        assert traffic.in_32_bits == 2 * (world - 1) * 4 * 65536 // world
        assert 0.93 * times < traffic.ratio < times, (spec, traffic.ratio)


class Net(nn.Module):
    """Odd sizes, and a parameter of one element."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(13, 37)
        self.second = nn.Linear(37, 5)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.second(self.first(x).relu())


def wrapped(hook: comm.QuantizedHook | None, **options: object) -> DistributedDataParallel:
    torch.manual_seed(0)
    dtype = options.pop("dtype", torch.float32)
    model = DistributedDataParallel(Net().to(dtype), **options)
    if hook is not None:
        model.register_comm_hook(None, hook)
    return model


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(16, 13, generator=generator)
    return x, x[:, :5].cumsum(1).tanh()


def train(model: DistributedDataParallel, steps: int, first: int = 0, lr: float = 0.1) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    dtype = next(model.parameters()).dtype
    last = 0.0
    for step in range(first, first + steps):
        x, y = batch(step, dist.get_rank())
        optimizer.zero_grad()
        loss = (model(x.to(dtype)) - y.to(dtype)).square().mean()
        loss.backward()
        optimizer.step()
        last = float(loss.detach())
    return last


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1).float() for p in model.parameters()])


def same_everywhere(x: Tensor) -> bool:
    gathered = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, x)
    return all(torch.equal(x_of_rank, gathered[0]) for x_of_rank in gathered)


def hooks_train_like_plain_ddp() -> None:
    plain = wrapped(None)
    train(plain, 10)
    start = flat(wrapped(None))
    moved = (flat(plain) - start).norm()
    for hook, near, megabytes in (
        (comm.quantized_hook("B2048/tree@8s"), 0.03, 25),
        (comm.quantized_hook("B2048/tree@8s"), 0.03, 1e-4),  # a bucket for each parameter
        (comm.quantized_hook("B64/DE@4s", error_feedback=True), 0.2, 1e-4),
        (comm.quantized_hook("B64/DE@3s", error_feedback=True), 0.5, 25),
        (one_bit_hook(64), 0.8, 25),
    ):
        model = wrapped(hook, bucket_cap_mb=megabytes)
        train(model, 10)
        assert same_everywhere(flat(model))
        off = float((flat(model) - flat(plain)).norm() / moved)
        assert 0 < off < near, (hook.__name__, megabytes, off)
        assert hook.step == 10
        assert (hook.traffic.exchanges > 10) == (megabytes < 1)
    assert hook.__name__ == "quantized_hook(1 bit, B64)"


def error_feedback_loses_nothing_over_time() -> None:
    """The sum of results equals the sum of gradients, up to the error of one step."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x = tensor_of(rank, 333)
    mean = torch.stack([tensor_of(r, 333) for r in range(world)]).mean(0)
    from qmaps.distributed.comm.coder import Coder
    from qmaps.distributed.comm.reduce import Reducer
    from reproduction.parallelism_2015._one_bit import OneBit

    for coder in (OneBit(64), Coder("B64/DE@2s")):
        reduce, residual, total = Reducer(coder), torch.zeros(333), torch.zeros(333)
        without = torch.zeros(333)
        for step in range(40):
            total += reduce(x.clone(), "gradients", step=step, residual=residual)
            without += reduce(x.clone(), "gradients", step=step)
        with_feedback = float((total / 40 - mean).abs().mean())
        lost = float((without / 40 - mean).abs().mean())
        assert with_feedback < 0.2 * lost, (coder.name, with_feedback, lost)


def exchanges_go_on_during_the_backward_pass() -> None:
    """The first bucket waits for gradients of layers later in the backward pass."""
    hook = comm.quantized_hook("B2048/tree@8s")
    model = wrapped(hook, bucket_cap_mb=1e-4)
    train(model, 1)  # after it DDP makes a bucket for each parameter
    coder = hook._reduce.coder
    reached, encode = threading.Event(), coder.encode

    def waiting(x: Tensor, key: RoundingKey) -> Tensor:
        assert reached.wait(20)
        return encode(x, key)

    coder.encode = waiting
    model.module.first.weight.register_hook(lambda _: reached.set())
    train(model, 1)
    assert same_everywhere(flat(model))


def gradients_accumulate_without_sync() -> None:
    hook = comm.quantized_hook("B2048/tree@8s")
    model = wrapped(hook)
    rank = dist.get_rank()
    train(model, 1)  # DDP makes its buckets anew after the first
    hook.traffic.reset()
    model.zero_grad()
    with model.no_sync():
        for step in range(3):
            x, y = batch(step, rank)
            (model(x) - y).square().mean().backward()
    assert hook.traffic.exchanges == 0
    x, y = batch(3, rank)
    (model(x) - y).square().mean().backward()
    assert hook.traffic.exchanges == 1
    actual = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    assert same_everywhere(actual)
    expected = torch.zeros_like(actual)
    for step in range(4):
        for r in range(dist.get_world_size()):
            x, y = batch(step, r)
            loss = (model.module(x) - y).square().mean()
            grads = torch.autograd.grad(loss, list(model.parameters()))
            expected += torch.cat([g.reshape(-1) for g in grads]) / dist.get_world_size()
    assert float((actual - expected).norm() / expected.norm()) < 0.02


def bfloat16_models_train() -> None:
    hook = comm.quantized_hook("B2048/tree@8s")
    model = wrapped(hook, dtype=torch.bfloat16, gradient_as_bucket_view=True)
    plain = wrapped(None, dtype=torch.bfloat16)
    start = flat(plain)
    train(model, 8)
    train(plain, 8)
    assert same_everywhere(flat(model))
    assert float((flat(model) - flat(plain)).norm() / (flat(plain) - start).norm()) < 0.1
    assert all(p.grad.dtype == torch.bfloat16 for p in model.parameters())


def hooks_resume_bit_for_bit() -> None:
    spec = "B64/DE@3s+sr"
    hook = comm.quantized_hook(spec, error_feedback=True, seed=3)
    model = wrapped(hook)
    train(model, 4)
    saved, states = hook.state_dict(model), {k: v.clone() for k, v in model.state_dict().items()}
    assert set(saved["residuals"]) == {n for n, _ in model.module.named_parameters()}
    train(model, 3, 4)
    resumed = comm.quantized_hook(spec, error_feedback=True, seed=3)
    again = wrapped(resumed)
    again.load_state_dict(states)
    train(again, 1)  # DDP rebuilds buckets after one step; this step is undone
    again.load_state_dict(states)
    resumed.load_state_dict(saved, again)
    train(again, 3, 4)
    assert torch.equal(flat(again), flat(model))
    saved["residuals"]["first.weight"] = torch.zeros(3)
    refused(
        lambda: resumed.load_state_dict(saved, again),
        BadValueError,
        "residual 'first.weight' belongs to no parameter of the module",
    )


def uneven(model: DistributedDataParallel, steps: int, sent: int) -> None:
    """Train with a loss of zero from step `sent` on."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        x, y = batch(step, dist.get_rank())
        optimizer.zero_grad()
        ((model(x) - y).square().mean() * (step < sent)).backward()
        optimizer.step()


def ranks_without_inputs_join_with_zeros() -> None:
    """A rank without inputs counts as a rank with gradients of zero."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    for spec, megabytes in (("B64/DE@8s", 25), ("B64/DE@4s+sr", 1e-4)):
        model, plain = (
            wrapped(comm.quantized_hook(spec, seed=3), bucket_cap_mb=megabytes) for _ in range(2)
        )
        steps = 5 if rank == last else 2
        with Join([model]):
            uneven(model, steps, steps)
        uneven(plain, 5, steps)
        assert same_everywhere(flat(model))
        assert torch.equal(flat(model), flat(plain))


def the_residual_of_a_rank_without_inputs_stays() -> None:
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    hook = comm.quantized_hook("B64/DE@3s", error_feedback=True)
    model = wrapped(hook)
    train(model, 2)
    states = {}
    with Join([model]):
        for step in range(2, 7 if rank == last else 4):
            train(model, 1, step)
        states["before"] = hook.state_dict(model)["residuals"]
    after = hook.state_dict(model)
    moved = [not torch.equal(x, after["residuals"][n]) for n, x in states["before"].items()]
    assert len(moved) == 5
    assert not any(moved)
    assert all(bool(x.any()) for name, x in after["residuals"].items() if name != "scale")
    assert after["step"] == 7
    assert same_everywhere(flat(model))
    train(model, 1, 7)
    assert same_everywhere(flat(model))
    assert not torch.equal(hook.state_dict(model)["residuals"]["first.weight"],
                           after["residuals"]["first.weight"])  # fmt: skip


def nan_reaches_a_rank_without_inputs() -> None:
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    model = wrapped(comm.quantized_hook("B64/DE@8s"))
    try:
        with Join([model]):
            for step in range(3 if rank == last else 1):
                x, y = batch(step, rank)
                (model(x) - y * (math.nan if step == 2 else 1)).square().mean().backward()
    except NonFiniteError as error:
        assert f" NaN or infinite elements on rank {last}, the first at" in str(error), str(error)  # noqa: PT017
    else:
        raise AssertionError("no error")


def refused(call: object, kind: type[Exception], message: str) -> None:
    try:
        call()
    except kind as error:
        assert str(error) == message, str(error)  # noqa: PT017 - no pytest in a rank
    else:
        raise AssertionError(f"no {kind.__name__}: {message}")


def nan_on_one_rank_is_an_error_on_all() -> None:
    last = dist.get_world_size() - 1
    for spec in ("B64/tree@8s", None):
        hook = comm.quantized_hook(spec) if spec else one_bit_hook()
        model = wrapped(hook)
        x, y = batch(0, dist.get_rank())
        if dist.get_rank() == last:
            y[0, 0] = math.nan
        try:
            (model(x) - y).square().mean().backward()
        except NonFiniteError as error:
            words = str(error)
            assert words.startswith("gradients 0 holds "), words
            assert f" NaN or infinite elements on rank {last}, the first at flat index " in words
            assert words.endswith("; nonfinite='propagate' passes them on")
        else:
            raise AssertionError("no error")
        train(wrapped(hook), 1)  # the failure is over with that backward pass
    passing = comm.quantized_hook("B64/tree@8s", nonfinite="propagate", error_feedback=True)
    model = wrapped(passing)
    x, y = batch(0, dist.get_rank())
    if dist.get_rank() == last:
        y[0, 0] = math.inf
    (model(x) - y).square().mean().backward()
    assert all(p.grad.isnan().all() for p in model.parameters())
    assert not any(residual.any() for residual in passing._residuals.values())


def ranks_that_differ_are_an_error_on_all() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    last = world - 1
    numel = 100 - (rank == last)
    refused(
        lambda: comm.average(torch.ones(numel), "B64/tree@8s", number=4),
        BadValueError,
        f"a tensor 4 has 100 elements on rank 0 and 99 on rank {last}; all ranks need the "
        "same number",
    )
    refused(
        lambda: comm.average(torch.ones(9), f"B64/DE@{8 - (rank == last)}s"),
        BadValueError,
        f"rank {last} quantizes a tensor 0 differently from rank 0; all ranks need the same "
        "quantizer",
    )
    refused(
        lambda: comm.average(torch.ones(9), "B64/DE@8s", number=int(rank == last)),
        BadValueError,
        f"rank 0 exchanges a tensor 0, but rank {last} exchanges a tensor 1; all ranks must "
        "exchange the same things in the same order",
    )
    x = torch.ones(9)
    x[4 + rank] = math.nan
    refused(
        lambda: comm.average(x, "B64/DE@8s"),
        NonFiniteError,
        "a tensor 0 holds 1 NaN or infinite elements on rank 0, the first at flat index 4; "
        "nonfinite='propagate' passes them on",
    )
    # The group is as good as before.
    assert torch.equal(comm.average(torch.ones(9), "tensor/linear0@8s"), torch.ones(9))


CHECKS = {
    check.__name__: check
    for check in (
        averages_are_those_of_the_plain_quantizer,
        noise_differs_between_ranks_and_steps,
        bytes_are_those_on_the_wire,
        hooks_train_like_plain_ddp,
        error_feedback_loses_nothing_over_time,
        exchanges_go_on_during_the_backward_pass,
        gradients_accumulate_without_sync,
        bfloat16_models_train,
        hooks_resume_bit_for_bit,
        ranks_without_inputs_join_with_zeros,
        the_residual_of_a_rank_without_inputs_stays,
        nan_reaches_a_rank_without_inputs,
        ranks_that_differ_are_an_error_on_all,
        nan_on_one_rank_is_an_error_on_all,
    )
}
