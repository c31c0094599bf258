"""Time of a training step with narrow messages, beside plain DistributedDataParallel.

``python -m benchmarks.communication`` starts two ranks over gloo on this machine, gives every
contender its turn in each round, and writes reports/communication.{json,md}. Ratios count, not
times: two ranks on one machine share its processors, and its loopback is no network.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks import machine
from benchmarks.command import count, one_line_errors
from benchmarks.markdown import markdown as table_lines
from benchmarks.markdown import spread
from benchmarks.timing import interleaved, quartiles, ratio
from qmaps.distributed import comm
from qmaps.errors import BadValueError
from qmaps.storage.files import output_folder, write_json, write_text

PLAIN = "plain DDP"
CONTENDERS: dict[str, Callable[[], comm.QuantizedHook] | None] = {
    PLAIN: None,
    "B2048/tree@8s": lambda: comm.quantized_hook("B2048/tree@8s"),
    "B2048/DE@4s": lambda: comm.quantized_hook("B2048/DE@4s"),
    "B2048/DE@4s, error feedback": lambda: comm.quantized_hook("B2048/DE@4s", error_feedback=True),
    "1 bit, error feedback": comm.one_bit_hook,
}
TIMEOUT_S = 300
HEAD = ("messages", "seconds of a step", "times plain", "sent, MB a step", "times fewer bytes")


def model(width: int) -> nn.Module:
    """Two hidden layers, as the paper's net."""
    return nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def measure(rank: int, world: int, rounds: int, width: int) -> dict[str, Any]:
    """Seconds of each contender's steps and bytes, on one rank."""
    torch.manual_seed(0)
    x, y = torch.randn(128, 64), torch.randint(10, (128,))
    works: dict[str, Callable[[], object]] = {}
    hooks: dict[str, comm.QuantizedHook] = {}
    for name, make in CONTENDERS.items():
        net = DistributedDataParallel(model(width))
        if make is not None:
            hooks[name] = make()
            net.register_comm_hook(None, hooks[name])
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

        def step(net: nn.Module = net, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()

        works[name] = step
    seconds, failed = interleaved(works, rounds, refresh=lambda _: dist.barrier())
    if failed:
        raise next(iter(failed.values()))
    numel = sum(p.numel() for p in model(width).parameters())
    plain = 2 * (world - 1) * 4 * numel // world
    traffic = {PLAIN: {"sent": float(plain), "ratio": 1.0}} | {
        name: {"sent": hook.traffic.sent / hook.step, "ratio": hook.traffic.ratio}
        for name, hook in hooks.items()
    }
    return {"rank": rank, "parameters": numel, "seconds": seconds, "traffic": traffic}


def worker(rank: int, world: int, folder: Path, rounds: int, width: int) -> None:
    """One rank; the first one writes what it measured."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=(folder / "store").resolve().as_uri(),
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=TIMEOUT_S),
    )
    found = measure(rank, world, rounds, width)
    if rank == 0:
        write_json(folder / "0.json", found)
    dist.barrier()
    dist.destroy_process_group()


def launch(world: int, rounds: int, width: int) -> dict[str, Any]:
    """Start the ranks, and read what the first one measured."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.communication", "--worker", folder]
        options = ["--world", str(world), "--rounds", str(rounds), "--width", str(width)]
        started = [
            subprocess.Popen(
                [*command, *options, "--rank", str(rank)],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        try:
            said = [process.communicate()[1] for process in started]
        finally:
            for process in started:
                process.kill()
        for process, words in zip(started, said, strict=True):
            if process.returncode:
                last = (words.strip().splitlines() or ["nothing"])[-1]
                raise BadValueError(f"a rank failed; it said: {last}")
        found: dict[str, Any] = json.loads((Path(folder) / "0.json").read_text(encoding="utf-8"))
        return found


def markdown(result: dict[str, Any]) -> str:
    """The result as a page."""
    seconds, traffic = result["seconds"], result["traffic"]
    cells = []
    for name in CONTENDERS:
        taken = seconds[name]
        slower = ratio(taken, seconds[PLAIN])
        cells.append(
            [
                name,
                spread(quartiles(taken), "median"),
                spread(slower, "ratio"),
                f"{traffic[name]['sent'] / 1e6:.2f}",
                f"{traffic[name]['ratio']:.2f}",
            ]
        )
    about = result["about"]
    lines = [
        "# A training step with narrow messages",
        "",
        f"`{about['command']}`",
        "",
        f"{about['machine']['processor']}, torch {about['versions']['torch']}; "
        f"{result['world']} ranks of one thread over gloo, a net of {result['parameters']:,} "
        "parameters. Medians with quartiles, turns taken in each round. There is no network "
        "between the ranks: what messages of fewer bytes gain on one, `qmaps speedup` predicts; "
        "here is what coding them costs, and that a hook exchanges three messages (headers, parts, "
        f"averages) where plain DDP has one. At the start {result['load']:.1f} processes wanted "
        f"{result['cores']} cores; the more there are, the longer each message waits.",
        "",
        *table_lines(HEAD, cells),
    ]
    return "\n".join(lines) + "\n"


@one_line_errors
def main(given: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    words = sys.argv[1:] if given is None else list(given)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.communication", description=__doc__)
    parser.add_argument("--world", type=count, default=2, help="ranks (2)")
    parser.add_argument("--rounds", type=count, default=15, help="counted rounds (15)")
    parser.add_argument("--width", type=count, default=1024, help="of hidden layers (1024)")
    parser.add_argument("--out", type=Path, default=Path("reports"), help="folder of the results")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.worker is not None:
        worker(options.rank, options.world, options.worker, options.rounds, options.width)
        return 0
    output_folder(options.out)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    result = launch(options.world, options.rounds, options.width)
    result |= {"about": machine.about(words, "benchmarks.communication")}
    result |= {"world": options.world, "load": load, "cores": os.cpu_count()}
    write_json(options.out / "communication.json", result)
    write_text(options.out / "communication.md", markdown(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
