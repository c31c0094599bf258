"""Cost of a step on parameters that ``fully_shard`` splits, beside torch's AdamW.

``python -m benchmarks.sharded`` starts two ranks over gloo on this machine, gives every optimizer
its turn in each round, and writes reports/sharded.{json,md}. Ratios count, not times: the ranks
share the machine's processors, and its loopback is no network.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from benchmarks import machine
from benchmarks.command import count, one_line_errors
from benchmarks.markdown import markdown as table_lines
from benchmarks.timing import interleaved, ratio
from qmaps.optim import AdamW, AdamW4bit, AdamW8bit
from qmaps.storage.files import output_folder, write_json
from reproduction.report_file import write_report

TORCH = "torch.optim.AdamW"
BLOCKS = {"exp_avg": "B128/DE@4s", "exp_avg_sq": "B128/linear@4u"}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    TORCH: torch.optim.AdamW,
    "AdamW8bit": AdamW8bit,
    "AdamW, 4-bit blocks for both moments": lambda params: AdamW(params, state_quantizers=BLOCKS),
    "AdamW4bit": AdamW4bit,
    "AdamW, paper-4bit, rank1 across ranks": lambda params: AdamW(
        params, state_quantizers="paper-4bit"
    ),
}
RANKS = 2
TIMEOUT_S = 120


def prepared(make: Callable[..., torch.optim.Optimizer], width: int) -> torch.optim.Optimizer:
    """An optimizer of sharded layers that have gradients."""
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
    for layer in (*net, net):
        fully_shard(layer)
    net(torch.randn(4, width)).square().mean().backward()
    return make(net.parameters())


def turn(optimizer: torch.optim.Optimizer) -> None:
    """One step of all ranks."""
    optimizer.step()
    dist.barrier()  # the slowest rank counts


def rank_main(rank: int, folder: str, width: int, rounds: int) -> None:
    """One of the ranks; the first writes what all took."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=RANKS,
        timeout=datetime.timedelta(seconds=TIMEOUT_S),
    )
    works = {
        name: functools.partial(turn, prepared(make, width)) for name, make in OPTIMIZERS.items()
    }
    seconds, failed = interleaved(works, rounds, refresh=lambda _: dist.barrier())
    if failed:
        raise next(iter(failed.values()))
    if rank == 0:
        ratios = {name: ratio(times, seconds[TORCH])["ratio"] for name, times in seconds.items()}
        Path(folder, "ratios.json").write_text(json.dumps(ratios))
    dist.barrier()
    dist.destroy_process_group()


def page(ratios: dict[str, float], width: int, rounds: int) -> str:
    """The ratios in Markdown."""
    lines = [
        "# Steps on sharded parameters",
        "",
        f"`python -m benchmarks.sharded --width {width} --rounds {rounds}`: {RANKS} ranks over "
        f"gloo with one thread each, four linear layers of {width} by {width} under `fully_shard`; "
        "optimizer steps alone. Ratios of medians over interleaved rounds. A step with "
        "`rank1` computes its maxima first, and exchanges them in one collective.",
        "",
        *table_lines(
            ("optimizer", "a step, times torch"),
            [(name, f"{value:.2f}") for name, value in ratios.items()],
        ),
    ]
    return "\n".join(lines) + "\n"


@one_line_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharded", description=__doc__)
    parser.add_argument("--width", type=count, default=1024, help="of layers (default 1024)")
    parser.add_argument("--rounds", type=count, default=15, help="that count (default 15)")
    parser.add_argument("--out", type=Path, default=Path("reports"), help="folder for results")
    options = parser.parse_args(arguments)
    out = output_folder(options.out)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(
            rank_main, (folder, options.width, options.rounds), nprocs=RANKS
        )
        ratios = json.loads(Path(folder, "ratios.json").read_text())
    argv = sys.argv[1:] if arguments is None else list(arguments)
    about = machine.about(argv, "benchmarks.sharded")
    write_json(out / "sharded.json", {"about": about, "ratios": ratios})
    write_report(out / "sharded.md", page(ratios, options.width, options.rounds))
    print((out / "sharded.md").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
