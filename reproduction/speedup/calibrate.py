"""Measures the cost of coding and transfers between two processes of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from qmaps.algebra.quantizer import Quantizer, quantizer
from qmaps.errors import BadTypeError, BadValueError
from reproduction.speedup._checks import count
from reproduction.speedup.hardware import Hardware, Link

SIZES = tuple(4**k * 1000 for k in range(8))
"""Sizes of the timed messages in bytes: 1 kB to 16 MB."""
TIMEOUT_S = 120


def calibrate(
    quantizers: Sequence[Quantizer | str] = ("B2048/tree@8s", "B2048/tree@4s"),
    *,
    nodes: int = 1,
    gpus_per_node: int = 2,
    numbers: int = 2**20,
    rounds: int = 20,
) -> Hardware:
    """Time quantizing, decoding and messages between two processes here, over gloo.

    Args:
        quantizers: the timed quantizers.
        nodes: nodes of the returned hardware; all of its links are the measured one.
        gpus_per_node: devices per node of this hardware.
        numbers: number of quantized and decoded values.
        rounds: repetitions of each measurement; the median is taken.

    Returns:
        Hardware with one measured link, its latency a table of the measured sizes, and the
        nanoseconds of coding one number.

    Raises:
        BadValueError: the processes failed; the message ends with their output.
    """
    count("numbers", numbers)
    count("rounds", rounds)
    if isinstance(quantizers, str):
        raise BadTypeError(f"quantizers={quantizers!r} must be a list of specs")
    specs = [quantizer(q).spec for q in quantizers]
    with tempfile.TemporaryDirectory() as folder:
        task = {"specs": specs, "sizes": SIZES, "numbers": numbers, "rounds": rounds}
        (Path(folder) / "task.json").write_text(json.dumps(task), encoding="utf-8")
        measured = _run(Path(folder))
    bandwidth = SIZES[-1] / measured["transfer_ms"][-1] / 1e6
    latencies = tuple(
        (size / 1e3, max(0.0, ms - size / bandwidth / 1e6))
        for size, ms in zip(SIZES, measured["transfer_ms"], strict=True)
    )
    link = Link(bandwidth, latencies)
    return Hardware(
        "measured between two processes",
        nodes,
        gpus_per_node,
        link,
        link,
        dict(zip(specs, measured["compress_ns"], strict=True)),
        dict(zip(specs, measured["decompress_ns"], strict=True)),
    )


def _run(folder: Path) -> dict[str, list[float]]:
    """Start both processes, and read the measurements of the first one."""
    # As a file: the package would be imported with all papers.
    file = Path(__file__).with_name("transfers.py")
    command = [sys.executable, "-P", str(file), str(folder)]
    started: list[subprocess.Popen[str]] = []
    try:
        started += [
            subprocess.Popen([*command, rank], stderr=subprocess.PIPE, text=True) for rank in "01"
        ]
        for process in started:
            try:
                _, said = process.communicate(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                raise BadValueError(f"the calibration took longer than {TIMEOUT_S} s") from None
            if process.returncode:
                last = (said.strip().splitlines() or ["nothing"])[-1]
                raise BadValueError(
                    f"the calibration failed; the last line of its process was: {last}"
                )
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.communicate()
    result: dict[str, list[float]] = json.loads((folder / "0.json").read_text(encoding="utf-8"))
    return result
