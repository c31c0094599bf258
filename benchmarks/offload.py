"""Optimizer steps under DeepSpeed's ZeRO-Offload, on two processes.

``python -m benchmarks.offload`` trains a small net with ZeRO 2 and the optimizer on the CPU, once
with each optimizer, on two gloo processes, and writes reports/offload.{json,md}: the time of
``engine.step()`` in interleaved rounds, the memory of a process with only this optimizer, bytes of
the states, the losses, and the difference after resuming. It needs the extra ``deepspeed``, ninja's
program on the path, and a compiler.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from benchmarks import machine
from benchmarks.command import count, one_line_errors, study_options, written
from benchmarks.markdown import markdown as table_lines
from benchmarks.process import ALLOCATOR, resident
from benchmarks.timing import interleaved, ratio
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.distribution import install
from qmaps.errors import BadValueError
from qmaps.optim import AdamW4bit, AdamW8bit
from qmaps.storage.files import output_folder

RANKS, BATCH, LR, DEPTH, LAST = 2, 16, 1e-3, 4, 10
TORCH, OWN = "torch.optim.AdamW, fused", "DeepSpeedCPUAdam"
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer] | None] = {
    TORCH: functools.partial(torch.optim.AdamW, fused=True, weight_decay=0.0),
    OWN: None,
    "AdamW8bit": functools.partial(AdamW8bit, weight_decay=0.0),
    "AdamW4bit": functools.partial(AdamW4bit, weight_decay=0.0),
}
HEAD = (
    "optimizer",
    "a step, times torch",
    "memory of a process, MiB",
    "of it states",
    "loss",
    "difference after resuming",
)


def engine_of(name: str, width: int) -> Any:
    """DeepSpeed's engine of the same net with an optimizer."""
    import deepspeed

    torch.manual_seed(0)
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(width, width), nn.ReLU())]
    net, make = nn.Sequential(*layers, nn.Linear(width, width)), OPTIMIZERS[name]
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    if make is None:
        options = {"lr": LR, "weight_decay": 0.0}
        config["optimizer"] = {"type": "AdamW", "params": options}
        return deepspeed.initialize(model=net, config=config)[0]
    return deepspeed.initialize(model=net, optimizer=make(net.parameters(), lr=LR), config=config)[
        0
    ]


def backward(engine: Any, step: int) -> float:
    """Forward and backward of this rank's batch; return its loss."""
    width = next(engine.module.parameters()).shape[1]
    generator = torch.Generator().manual_seed(step * RANKS + dist.get_rank())
    x = torch.randn(BATCH, width, generator=generator).bfloat16()
    loss = (engine(x) - x.roll(1, dims=1)).float().square().mean()
    engine.backward(loss)
    return float(loss.detach())


def turn(engine: Any) -> None:
    """One step of all ranks."""
    engine.step()
    dist.barrier()  # the slowest rank counts


def state_nbytes(engine: Any) -> int:
    """Bytes of the states of this process."""
    states = engine.optimizer.optimizer.state.values()
    values = [value for state in states for value in state.values()]
    return sum(x.nbytes for x in values if isinstance(x, (Tensor, QuantizedTensor)))


def resumed(name: str, engine: Any, width: int, folder: str, step: int) -> float:
    """Return the largest difference of the next losses after loading a checkpoint."""
    engine.save_checkpoint(f"{folder}/{name.replace(' ', '-')}")
    loaded = engine_of(name, width)
    loaded.load_checkpoint(f"{folder}/{name.replace(' ', '-')}")
    losses: list[list[float]] = []
    for current in (engine, loaded):
        losses.append([])
        for number in range(step, step + 2):
            losses[-1].append(backward(current, number))
            turn(current)
    return max(abs(before - after) for before, after in zip(*losses, strict=True))


@contextmanager
def process_group(rank: int, folder: str) -> Iterator[None]:
    """The group of all ranks; `folder` must be new."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    import deepspeed

    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    deepspeed.init_distributed("gloo")
    yield
    dist.barrier()
    dist.destroy_process_group()


def memory_main(rank: int, folder: str, name: str, width: int) -> None:
    """One of the ranks with one optimizer; the first writes its memory in MiB."""
    with process_group(rank, folder):
        # A small model first, so that what engines load with their first step does not count.
        small = engine_of(name, 16)
        backward(small, 0)
        turn(small)
        before = resident()
        engine = engine_of(name, width)
        for step in range(3):
            backward(engine, step)
            turn(engine)
        after = resident()
        result = {"process_mib": after - before if before and after else None}
        if rank == 0:
            Path(folder, "memory.json").write_text(json.dumps(result))


def rank_main(rank: int, folder: str, width: int, rounds: int) -> None:
    """One of the ranks with all optimizers; the first writes the results."""
    with process_group(rank, folder):
        results = measured(folder, width, rounds)
        if rank == 0:
            Path(folder, "results.json").write_text(json.dumps(results))


def measured(folder: str, width: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Times, states and losses of all optimizers."""
    engines = {name: engine_of(name, width) for name in OPTIMIZERS}
    losses: dict[str, list[float]] = {name: [] for name in OPTIMIZERS}

    def clock(work: Callable[[], object]) -> float:
        name = work.args[0]  # type: ignore[attr-defined]
        losses[name].append(backward(engines[name], len(losses[name])))
        dist.barrier()
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    works = {name: functools.partial(lambda n: turn(engines[n]), name) for name in OPTIMIZERS}
    seconds, failed = interleaved(works, rounds, clock=clock)
    if failed:
        raise next(iter(failed.values()))
    results = {}
    for name, times in seconds.items():
        last = torch.tensor(statistics.mean(losses[name][-LAST:]))
        dist.all_reduce(last)
        results[name] = {
            **ratio(times, seconds[TORCH]),
            "state_nbytes": state_nbytes(engines[name]),
            "loss": float(last) / RANKS,
            "resumed": resumed(name, engines[name], width, folder, len(losses[name])),
        }
    return results


def in_processes(work: Callable[..., None], file: str, *arguments: object) -> dict[str, Any]:
    """The JSON of `work`, run on all ranks in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(work, (folder, *arguments), nprocs=RANKS)
        results: dict[str, Any] = json.loads(Path(folder, file).read_text())
    return results


def page(results: dict[str, dict[str, Any]], width: int, rounds: int) -> str:
    """The results in Markdown."""
    rows = [
        (
            name,
            f"{result['ratio']:.2f} ({result['q1']:.2f} to {result['q3']:.2f})",
            "-" if (mib := result["process_mib"]) is None else f"{mib:.0f}",
            f"{result['state_nbytes'] / 2**20:.1f}",
            f"{result['loss']:.4f}",
            f"{result['resumed']:.1g}",
        )
        for name, result in results.items()
    ]
    lines = [
        "# Steps under DeepSpeed's ZeRO-Offload",
        "",
        f"`python -m benchmarks.offload --width {width} --rounds {rounds}`: {RANKS} processes over "
        f"gloo with one thread each and no GPU; {DEPTH + 1} linear layers of {width} by {width} in "
        "bfloat16, ZeRO 2 with the optimizer on the CPU. The time is that of `engine.step()`, "
        "so with the exchange of parameters, as ratios of medians over interleaved rounds "
        "(quartiles of the ratios in parentheses). The memory is what two processes with this "
        "optimizer alone have more after three steps than before the engine, each: weights and "
        "gradients in bfloat16, float32 weights, buffers of the exchange, and states. The loss "
        f"is the mean of the last {LAST} steps on the same batches; the last column is the largest "
        "difference of two more losses of this process from those of an engine that loads the "
        "checkpoint. Without a GPU nothing is copied over a bus.",
        "",
        *table_lines(HEAD, rows),
    ]
    return "\n".join(lines) + "\n"


@one_line_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = study_options("benchmarks.offload", __doc__, rounds=40)
    parser.add_argument("--width", type=count, default=512, help="of layers (default 512)")
    options = parser.parse_args(arguments)
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        import deepspeed
    except ImportError:
        raise BadValueError(f"deepspeed is not installed ({install('deepspeed')})") from None
    output_folder(options.out)
    results = in_processes(rank_main, "results.json", options.width, options.rounds)
    os.environ.update(ALLOCATOR)
    for name, result in results.items():
        result |= in_processes(memory_main, "memory.json", name, options.width)
    info = machine.about(arguments, "benchmarks.offload")
    info["versions"]["deepspeed"] = deepspeed.__version__
    text = page(results, options.width, options.rounds)
    return written(options.out, "offload", text, {"about": info, "results": results})


if __name__ == "__main__":
    sys.exit(main())
