"""Checkpoints of shards: saved, converted, and loaded by other numbers of processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.capture import load
from qmaps.capture.conversion import convert_file
from qmaps.distributed.rows import by_rows
from qmaps.engines.sharding.shards import local, shard_of
from qmaps.optim import (
    SOAP,
    AdamW,
    AdamW4bit,
    AdamW8bit,
    Muon4bit,
    QuantizedOptimizer,
    SOAP4bit,
    SOAP8bit,
)
from tests.distributed.checks.common import (
    Make,
    assert_same,
    cut,
    floats,
    here,
    model,
    paper_4bit,
    sharded,
    train,
)


class Uneven(nn.Module):
    def __init__(self, mesh: Any = None) -> None:
        super().__init__()
        full = torch.randn(50, 33, generator=torch.Generator().manual_seed(1))
        self.w = nn.Parameter(full if mesh is None else distribute_tensor(full, mesh, [Shard(0)]))


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
    save_matrices(sharded(model(torch.bfloat16)), here.world)
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
    dcp.save(flat, checkpoint_id=here.folder / f"flat{here.world}")
    dcp.save(saved_state(parts, optimizer), checkpoint_id=here.folder / f"from{here.world}")
    # Back to where it was: on as many processes everything is as it was.
    for folder, form in ((f"from{here.world}", None), (f"flat{here.world}", FLAT)):
        train(parts, optimizer, range(3, 4))
        load_saved(parts, optimizer, here.folder / folder, form)
        for (p, name), old in before.items():
            value = optimizer.state[p][name]
            assert all(map(torch.equal, (value.packed, *value.scales), (old.packed, *old.scales)))
    if here.rank == 0:
        nested, flattened = (
            load(here.folder / f"from{here.world}"),
            load(here.folder / f"flat{here.world}"),
        )
        assert flattened.fingerprint() == nested.fingerprint()

    mesh = dist.init_device_mesh("cpu", (here.world,))
    uneven = Uneven(mesh)
    optimizer = AdamW8bit(uneven.parameters(), min_quantized_size=0)
    for step in range(3):
        grad = torch.randn(50, 33, generator=torch.Generator().manual_seed(step))
        uneven.w.grad = distribute_tensor(grad, mesh, [Shard(0)])
        optimizer.step()
    dcp.save(saved_state(uneven, optimizer), checkpoint_id=here.folder / f"uneven{here.world}")
    before_w = {name: floats(optimizer.state[uneven.w][name]) for name in ("exp_avg", "exp_avg_sq")}
    shard = shard_of(uneven.w)
    assert shard is not None
    full = {name: shard.distributed(value).full_tensor() for name, value in before_w.items()}
    load_saved(uneven, optimizer, here.folder / f"uneven{here.world}")
    for name, value in before_w.items():
        assert torch.equal(floats(optimizer.state[uneven.w][name]), value), name
    if here.rank == 0:
        torch.save(full, here.folder / f"uneven{here.world}.pt")


def check_converted_folders() -> None:
    """Shards of torch's AdamW continue in 4 bits, and back."""
    parts = sharded(model())
    exact = torch.optim.AdamW(parts.parameters(), lr=1e-2)
    train(parts, exact, range(3))
    dcp.save(saved_state(parts, exact), checkpoint_id=here.folder / "exact")
    if here.rank == 0:
        (report,) = convert_file(
            here.folder / "exact",
            here.folder / "4bit",
            to="qmaps",
            states="4bit",
            distributed="optimizer",
        )
        assert {row.how for row in report.states} == {"quantized", "same values"}
    dist.barrier()
    exact.zero_grad()  # with gradients, torch would not make states to load into
    small = AdamW4bit(parts.parameters(), lr=1.0, seed=8)
    state = {"optimizer": get_optimizer_state_dict(parts, small)}
    options_stay = DefaultLoadPlanner(allow_partial_load=True)
    dcp.load(state, checkpoint_id=here.folder / "4bit", planner=options_stay)
    set_optimizer_state_dict(parts, small, state["optimizer"])
    assert [small.param_groups[0][name] for name in ("lr", "seed")] == [1e-2, 8]
    converted = load(here.folder / "4bit")
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

    dcp.save(saved_state(parts, small), checkpoint_id=here.folder / "small")
    if here.rank == 0:
        convert_file(
            here.folder / "small", here.folder / "back", to="torch", distributed="optimizer"
        )
    dist.barrier()
    state = {"optimizer": get_optimizer_state_dict(parts, exact)}
    options_stay = DefaultLoadPlanner(allow_partial_load=True)
    dcp.load(state, checkpoint_id=here.folder / "back", planner=options_stay)
    set_optimizer_state_dict(parts, exact, state["optimizer"])
    decoded = load(here.folder / "small")
    for name, p in parts.named_parameters():
        assert exact.state[p]["step"] == 4
        for key in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(exact.state[p][key].full_tensor(), decoded.tensor(name, key))


def go_on(net: nn.Module, source: str) -> None:
    """Load a checkpoint of three steps, and continue like one process."""
    with torch.no_grad():
        for p in net.parameters():
            local(p).zero_()
    optimizer = AdamW(net.parameters(), lr=1.0, **{**options(), "seed": 8})
    load_saved(net, optimizer, here.folder / source)
    train(net, optimizer, range(3, 5))
    expected_net = model(torch.bfloat16)
    expected = AdamW(expected_net.parameters(), lr=1e-2, **options())
    train(expected_net, expected, range(5))
    assert_same(expected, optimizer)
    assert optimizer.param_groups[0]["lr"] == 1e-2


def uneven_values(net: Uneven, source: str) -> None:
    """Blocks with another beginning are encoded again: one rounding away."""
    optimizer = AdamW8bit(net.parameters(), min_quantized_size=0)
    load_saved(net, optimizer, here.folder / source)
    states = torch.load(here.folder / f"{source}.pt", weights_only=True)
    for name, value in states.items():
        expected, actual = cut(net.w, value), floats(optimizer.state[net.w][name])
        # Neighbours in 8 bits are an eighth of an octave apart.
        assert bool(((actual - expected).abs() <= 0.13 * value.abs().max()).all()), name


def of_matrices(net: nn.Sequential, lr: float, seed: int) -> list[QuantizedOptimizer]:
    first, bias, second = net.parameters()
    return [
        Muon4bit([first], lr=lr, seed=seed, master_weights=True),
        SOAP4bit([bias, second], lr=lr, seed=seed, precondition_frequency=2),
    ]


def save_matrices(net: nn.Sequential, ranks: int, **options: Any) -> None:
    optimizers = of_matrices(net, 1e-2, 3)
    train(net, optimizers, range(3))
    dcp.save(
        saved_state(net, optimizers), checkpoint_id=here.folder / f"matrices{ranks}", **options
    )


def go_on_with_matrices(net: nn.Sequential, source: int) -> None:
    with torch.no_grad():
        for p in net.parameters():
            local(p).zero_()
    optimizers = of_matrices(net, 1.0, 8)
    load_saved(net, optimizers, here.folder / f"matrices{source}")
    train(net, optimizers, range(3, 5))
    expected_net = model(torch.bfloat16)
    expected = of_matrices(expected_net, 1e-2, 3)
    train(expected_net, expected, range(5))
    for ours, theirs in zip(expected, optimizers, strict=True):
        assert_same(ours, theirs)
        assert theirs.param_groups[0]["lr"] == 1e-2


def check_loads_from_1() -> None:
    go_on(sharded(model(torch.bfloat16)), "from1")
    go_on_with_matrices(sharded(model(torch.bfloat16)), 1)


def check_loads_from_2() -> None:
    go_on(sharded(model(torch.bfloat16)), "from2")
    go_on_with_matrices(sharded(model(torch.bfloat16)), 2)
    uneven_values(Uneven(dist.init_device_mesh("cpu", (here.world,))), "uneven2")


def check_full_state_dicts() -> None:
    """Gather full tensors; one process loads them, and all processes do."""
    for make in (AdamW4bit, paper_4bit, SOAP8bit):
        full_state_dicts(make)


def full_state_dicts(make: Make) -> None:
    parts, full = sharded(model()), model()
    ours, theirs = make(full.parameters()), make(parts.parameters())
    train(full, ours, range(2))
    train(parts, theirs, range(2))
    gathered = get_optimizer_state_dict(
        parts, theirs, options=StateDictOptions(full_state_dict=True)
    )
    alone = model()
    alone.load_state_dict(full.state_dict())
    again = make(alone.parameters())
    set_optimizer_state_dict(alone, again, gathered)
    assert_same(ours, again)
    # What one process has saved with torch.save, each process cuts its part of.
    for saved in (ours.state_dict(), in_rows(ours)):
        theirs.load_state_dict(saved)
        assert_same(ours, theirs)
    # A checkpoint in 32 bits, quantized by all together.
    exact = (SOAP if make is SOAP8bit else AdamW)(full.parameters(), state_quantizers=None)
    exact.load_state_dict({**ours.state_dict(), "param_groups": exact.state_dict()["param_groups"]})
    plain = {
        number: {name: floats(value) for name, value in exact.state[p].items()}
        for number, p in enumerate(full.parameters())
    }
    for optimizer in (ours, theirs):
        optimizer.load_state_dict(
            {"state": plain, "param_groups": optimizer.state_dict()["param_groups"]}
        )
    assert_same(ours, theirs)


def in_rows(optimizer: QuantizedOptimizer) -> dict[str, Any]:
    with by_rows():
        return optimizer.state_dict()


def check_saves_alone() -> None:
    """One process without shards saves for several with shards."""
    net = model(torch.bfloat16)
    optimizer = AdamW(net.parameters(), lr=1e-2, **options())
    train(net, optimizer, range(3))
    with by_rows():
        dcp.save(saved_state(net, optimizer), checkpoint_id=here.folder / "from1", no_dist=True)
        save_matrices(model(torch.bfloat16), 1, no_dist=True)


def check_loads_alone() -> None:
    """One process without shards loads from several with shards."""
    with by_rows():
        go_on(model(torch.bfloat16), "from2")
        go_on_with_matrices(model(torch.bfloat16), 2)
        uneven_values(Uneven(), "uneven2")


def check_memory_counts_what_is_here() -> None:
    parts = sharded(model())
    optimizer = AdamW8bit(parts.parameters())
    predicted = optimizer.memory()
    train(parts, optimizer, range(1))
    memory = optimizer.memory()
    assert memory.nbytes == predicted.nbytes == optimizer.state_nbytes
    assert memory.numel == sum(local(p).numel() for p in parts.parameters())
