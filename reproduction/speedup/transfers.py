"""One of two processes to measure transfers, started by `calibrate`."""

from __future__ import annotations

import datetime
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from qmaps.algebra.quantizer import quantizer
from qmaps.storage.files import write_json

WARM_UPS = 3
TIMEOUT = datetime.timedelta(seconds=60)


def median_s(work: Callable[[], object], rounds: int) -> float:
    """Median seconds of one call."""
    seconds = []
    for _ in range(rounds + WARM_UPS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[WARM_UPS:])


def transfers(rank: int, sizes: list[int], rounds: int) -> list[float]:
    """Time messages between two processes; both must call this with the same arguments.

    Args:
        rank: rank of this process in the default process group, 0 or 1.
        sizes: sizes of the messages in bytes.
        rounds: how often each message is sent; the median is taken.

    Returns:
        Milliseconds of one message of each size: half of a round trip.
    """
    rows = []
    for size in sizes:
        buffer = torch.zeros(size, dtype=torch.uint8)

        def there_and_back(message: torch.Tensor = buffer) -> None:
            if rank == 0:
                dist.send(message, 1)
                dist.recv(message, 1)
            else:
                dist.recv(message, 0)
                dist.send(message, 0)

        rows.append(500 * median_s(there_and_back, rounds))
    return rows


def coding(specs: list[str], numbers: int, rounds: int) -> tuple[list[float], list[float]]:
    """Time quantizing and decoding of random float32 numbers.

    Args:
        specs: specs of quantizers.
        numbers: how many numbers are quantized at a time.
        rounds: how often each measurement is repeated; the median is taken.

    Returns:
        Nanoseconds to quantize one number, and to decode one, each for every quantizer.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(numbers, generator=generator, dtype=torch.float32)
    compress, decompress = [], []
    for spec in specs:
        q = quantizer(spec)
        t = q.quantize(x)
        compress.append(median_s(lambda q=q: q.quantize(x), rounds) * 1e9 / numbers)  # type: ignore[misc]
        decompress.append(median_s(t.dequantize, rounds) * 1e9 / numbers)
    return compress, decompress


def main(folder: Path, rank: int) -> None:
    """Measure with the other process; the first writes the result."""
    import json

    task: dict[str, Any] = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    dist.init_process_group(
        "gloo",
        init_method=(folder / "store").resolve().as_uri(),
        rank=rank,
        world_size=2,
        timeout=TIMEOUT,
    )
    try:
        milliseconds = transfers(rank, task["sizes"], task["rounds"])
        if rank == 0:  # only one process, so that the other does not slow it down
            compress, decompress = coding(task["specs"], task["numbers"], task["rounds"])
            times = {
                "transfer_ms": milliseconds,
                "compress_ns": compress,
                "decompress_ns": decompress,
            }
            write_json(folder / "0.json", times)
        dist.barrier()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
