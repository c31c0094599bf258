"""One monitor of several processes."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch._dynamo  # by DistributedDataParallel otherwise, in each rank
import torch.distributed as dist
from torch import nn

import qmaps
from qmaps.capture import Monitor
from qmaps.capture.monitor import ranks, switch_on, window
from qmaps.errors import BadValueError, CommunicationError, OutputError, StateWarning
from qmaps.optim import AdamW, AdamW8bit, SOAP8bit
from tests.distributed.checks.common import here, model, sharded, train
from tests.distributed.checks.matrices import matrices


def four_bit(net: nn.Module) -> AdamW:
    return AdamW(net.named_parameters(), lr=1e-2, state_quantizers="B64/DE@4s + B64/DE@4u")


def monitored(net: nn.Module, group: Any, out: str | None = None, **options: Any) -> Monitor:
    optimizer = four_bit(net)
    monitor = Monitor(
        optimizer,
        None if out is None else here.folder / out,
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
        with pytest.warns(StateWarning) if here.rank == 0 else nullcontext() as caught:
            strict = qmaps.capture.Thresholds(sqnr_db=100.0, saturated_share=None)
            group = dist.group.WORLD
            parts = monitored(sharded(model()), group, "shards.csv", thresholds=strict)
    finally:
        dist.all_gather = real
    # One gather to compare the rows, one for the first measured step; then one in each step.
    assert gathers == [13, 5 * 13, 5 * 13]
    alone = monitored(model(), None)
    exact = ("parameter", "state", "quantizer", "numel", "held_share", "moved_share")
    exact += ("stalled_share", "stuck_share", "saturated_share", "zero_point_share")
    for row, expected in zip(parts.rows, alone.rows, strict=True):
        assert str([row[name] for name in exact]) == str([expected[name] for name in exact])
        for name in ("sqnr_db", "update_mean_rel_error"):
            assert row[name] == pytest.approx(expected[name], rel=1e-9, nan_ok=True), name
        ours, theirs = row["update_median_rel_error"], expected["update_median_rel_error"]
        assert ours >= theirs or str(ours) == str(theirs) == "nan"
    # A file switches the same one on.
    settings = here.folder / f"monitor{here.rank}.yaml"
    settings.write_text(
        f"{{out: {here.folder}/file.csv, every: 2, sample: 100000, thresholds: null}}"
    )
    handle = switch_on(settings)
    net = sharded(model())
    train(net, four_bit(net), range(4))
    handle.remove()
    dist.barrier()
    assert (here.folder / "file.csv").read_text() == (here.folder / "shards.csv").read_text()
    if here.rank == 0:
        (text,) = (
            str(warning.message)
            for warning in caught
            if "sqnr_db" in str(warning.message) and "'exp_avg'" in str(warning.message)
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
    group, out = dist.group.WORLD, here.folder / "taken.csv"
    if here.rank == 0:
        out.write_text("something else\n")
    dist.barrier()
    nothing = BadValueError if here.rank else OutputError
    prefix = "rank 0: " if here.rank else ""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(ranks, "__version__", f"{here.rank}.0")
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (BadValueError, "qmaps=1.0 on rank 1 must be 0.0, as on rank 0", {}),
        (BadValueError, "every=3 on rank 1 must be 2, as on rank 0", {"every": 2 + here.rank}),
        (
            nothing,
            f"{prefix}out={str(out)!r} exists and is no file of a monitor with these columns; give "
            "another file",
            {"out": out},
        ),
    ]
    for error, message, options in cases:
        optimizer = AdamW8bit(model().parameters())
        settings = {"out": None, "every": 2, "process_group": group, **options}
        with pytest.raises(error) as caught:
            Monitor(optimizer, **settings)
        assert str(caught.value) == message
        assert not optimizer._optimizer_step_pre_hooks
        monkeypatch.undo()
    # Each rank would skip steps of its own.
    optimizer = AdamW8bit([list(model().named_parameters())[2 * here.rank]], nonfinite="skip")
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
    optimizer = AdamW8bit([params[here.rank]])
    with Monitor(optimizer, None, every=1, thresholds=None, process_group=group) as monitor:
        for _ in range(2):
            params[here.rank].grad = torch.ones_like(params[here.rank])
            optimizer.step()
    assert {(row["step"], row["parameter"]) for row in monitor.rows} == {(2, "group0.param0")}
    none = (
        "optimizer=AdamW8bit has no quantized states; a monitor needs at least one "
        "(state_quantizers, min_quantized_size)"
    )
    refused(BadValueError, none, AdamW8bit([params[1]]))
    shape = (128, 64 + here.rank)
    refused(
        BadValueError,
        "group0.param0 has shape (128, 65) on rank 1 and (128, 64) on rank 0; parameters that "
        "differ over ranks need names (names=model)",
        AdamW8bit([nn.Parameter(torch.ones(shape))]),
    )


def check_errors_of_one_rank_reach_the_others() -> None:
    def fails(*_: Any) -> Any:
        return {0: True}[here.rank]

    param = nn.Parameter(torch.ones(128, 64))
    param.grad = torch.ones_like(param)
    optimizer = AdamW8bit([param])
    error, message = (KeyError, "1") if here.rank else (BadValueError, "rank 1: KeyError: 1")
    refused(error, message, optimizer, parameters=fails)
    # While measuring, before it, and after it on the rank that logs: all raise at the next report.
    for place, rank, steps in (("_measure_moments", 1, 2), ("_watched", 1, 2), ("log", 0, 4)):

        def raises(*_: Any, rank: int = rank) -> None:
            if rank == here.rank:
                raise KeyError("two\nlines")

        options: dict[str, Any] = {"log": raises} if place == "log" else {}
        optimizer, monkeypatch = AdamW8bit([param]), pytest.MonkeyPatch()
        if rank == 1 == here.rank:
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
        with pytest.raises(KeyError) if place == "log" and here.rank == 0 else nullcontext():
            monitor.close()
        monitor.close()


def refused(error: type[Exception], message: str, optimizer: Any, **options: Any) -> None:
    with pytest.raises(error) as caught:
        Monitor(optimizer, None, process_group=dist.group.WORLD, **options)
    assert str(caught.value) == message
