"""Time of a training step with narrow messages, beside plain DistributedDataParallel.

``python -m benchmarks.communication`` starts two ranks over gloo on this machine, runs every method
once in each round, and writes reports/communication.{json,md}. Compare ratios, not times: two ranks
on one machine share its processors, and its loopback is no network. With ``--link 1gbit`` the ranks
have a network of this rate, and the files are communication-1gbit.{json,md}.
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
from contextlib import ExitStack
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks import machine
from benchmarks.command import count, one_line_errors, study_options, written
from benchmarks.link import link
from benchmarks.markdown import markdown as table_lines
from benchmarks.markdown import spread
from benchmarks.timing import interleaved, quartiles, ratio
from qmaps.distributed import comm
from qmaps.errors import BadValueError
from qmaps.storage.files import output_folder, write_json
from reproduction.parallelism_2015._one_bit import one_bit_hook

PLAIN, HALF = "plain DDP", "DDP's float16 hook"
BITS = {PLAIN: 32, HALF: 16}
METHODS: dict[str, Callable[[], comm.QuantizedHook]] = {
    "B2048/tree@8s": lambda: comm.quantized_hook("B2048/tree@8s"),
    "B2048/DE@4s": lambda: comm.quantized_hook("B2048/DE@4s"),
    "B2048/DE@4s, error feedback": lambda: comm.quantized_hook("B2048/DE@4s", error_feedback=True),
    "1 bit, error feedback": one_bit_hook,
}
TIMEOUT_S = 300
HEAD = ("messages", "seconds of a step", "times plain", "sent, MB a step", "times fewer bytes")


def model(width: int, layers: int) -> nn.Module:
    """Hidden layers of one width; the paper's net has two."""
    sizes = [64, *[width] * layers]
    hidden = [(nn.Linear(into, out), nn.ReLU()) for into, out in pairwise(sizes)]
    return nn.Sequential(*chain.from_iterable(hidden), nn.Linear(width, 10))


def measure(rank: int, world: int, rounds: int, width: int, layers: int) -> dict[str, Any]:
    """Seconds of each method's steps and bytes, on one rank."""
    torch.manual_seed(0)
    x, y = torch.randn(128, 64), torch.randint(10, (128,))
    works: dict[str, Callable[[], object]] = {}
    hooks: dict[str, comm.QuantizedHook] = {}
    for name in (*BITS, *METHODS):
        net = DistributedDataParallel(model(width, layers))
        if name == HALF:
            net.register_comm_hook(None, fp16_compress_hook)
        elif name in METHODS:
            hooks[name] = METHODS[name]()
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
    numel = sum(p.numel() for p in model(width, layers).parameters())
    traffic = {
        name: {"sent": 2 * (world - 1) * bits / 8 * numel / world, "ratio": 32 / bits}
        for name, bits in BITS.items()
    } | {
        name: {"sent": hook.traffic.sent / hook.step, "ratio": hook.traffic.ratio}
        for name, hook in hooks.items()
    }
    return {"rank": rank, "parameters": numel, "seconds": seconds, "traffic": traffic}


def worker(options: argparse.Namespace) -> None:
    """One rank; rank 0 writes its measurements."""
    rank, world, folder = options.rank, options.world, options.worker
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=(folder / "store").resolve().as_uri(),
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=TIMEOUT_S),
    )
    measured = measure(rank, world, options.rounds, options.width, options.layers)
    if rank == 0:
        write_json(folder / "0.json", measured)
    dist.barrier()
    dist.destroy_process_group()


def launch(options: argparse.Namespace) -> dict[str, Any]:
    """Start the ranks, and read the measurements of rank 0."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        hosts: list[tuple[list[str], dict[str, str]]] = [([], dict(os.environ))] * options.world
        if options.link:
            hosts = stack.enter_context(link(options.link))
        command = [sys.executable, "-m", "benchmarks.communication", "--worker", folder]
        for name in ("world", "rounds", "width", "layers"):
            command += [f"--{name}", str(getattr(options, name))]
        started = [
            subprocess.Popen(
                [*prefix, *command, "--rank", str(rank)],
                env=environment | {"OMP_NUM_THREADS": "1"},
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, (prefix, environment) in enumerate(hosts)
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
        result: dict[str, Any] = json.loads((Path(folder) / "0.json").read_text(encoding="utf-8"))
        return result


def markdown(result: dict[str, Any]) -> str:
    """The result as a page."""
    seconds, traffic = result["seconds"], result["traffic"]
    cells = []
    for name in (*BITS, *METHODS):
        times = seconds[name]
        slower = ratio(times, seconds[PLAIN])
        cells.append(
            [
                name,
                spread(quartiles(times), "median"),
                spread(slower, "ratio"),
                f"{traffic[name]['sent'] / 1e6:.2f}",
                f"{traffic[name]['ratio']:.2f}",
            ]
        )
    info = result["about"]
    network = (
        f"The ranks are in network namespaces of their own, joined by a link of {result['link']} "
        "in each direction."
        if result["link"]
        else "There is no network between the ranks: what messages of fewer bytes gain on one, "
        "`--link` shows and `python -m reproduction.speedup` predicts; here is what coding them "
        "costs, and that a hook exchanges three messages (headers, parts, averages) where plain "
        "DDP has one."
    )
    lines = [
        "# A training step with narrow messages",
        "",
        f"`{info['command']}`",
        "",
        f"{info['machine']['processor']}, torch {info['versions']['torch']}; "
        f"{result['world']} ranks of one thread over gloo, a net of {result['parameters']:,} "
        f"parameters. Medians with quartiles, turns taken in each round. {network} At the start "
        f"{result['load']:.1f} processes wanted {result['cores']} cores; the more there are, the "
        "longer each message waits. DDP's own hook for bfloat16 needs NCCL.",
        "",
        *table_lines(HEAD, cells),
    ]
    return "\n".join(lines) + "\n"


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = study_options("benchmarks.communication", __doc__, rounds=15)
    parser.add_argument("--world", type=count, default=2, help="ranks (2)")
    parser.add_argument("--width", type=count, default=1024, help="of hidden layers (1024)")
    parser.add_argument("--layers", type=count, default=2, help="hidden layers (2)")
    parser.add_argument(
        "--link",
        metavar="RATE",
        help="give two ranks hosts of their own, joined by a link of this rate, as in 1gbit; needs "
        "root and iproute2",
    )
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker is not None:
        worker(options)
        return 0
    output_folder(options.out)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    if options.link and options.world != 2:
        parser.error(f"--world {options.world} must be 2 with --link, which joins two hosts")
    result = launch(options)
    result |= {"about": machine.about(argv, "benchmarks.communication")}
    result |= {"world": options.world, "load": load, "cores": os.cpu_count(), "link": options.link}
    name = "communication" + (f"-{options.link}" if options.link else "")
    return written(options.out, name, markdown(result), result)


if __name__ == "__main__":
    sys.exit(main())
