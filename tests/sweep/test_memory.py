"""The memory of a sweep is bounded, on sparse files of zeros."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

SPECS = ["B128/DE@4s + B128/DE-0@4u", "B256/DE@8s + rank1/linear@4u", "tensor/DE@8s + 32-bit"]

MEASURED = """
import sys
from pathlib import Path
import torch
from qmaps import sweep
from qmaps.capture import load
from qmaps.sweep.plan import items_of

def memory(name):
    [line] = [x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(name)]
    return int(line.split()[1]) * 1024

path, every, *specs = sys.argv[1:]
torch.set_num_threads(1)
sweep.run({"w": {"exp_avg": torch.ones(90, 90), "exp_avg_sq": torch.ones(90, 90)}}, specs)
before = memory("VmRSS")
states = load(path)
items = items_of(states, specs)
rows = [len(item.measure(states)) for item in items[:: int(every)]]
print(len(items), sum(rows), memory("VmHWM") - before)
"""

DIGEST = """
import sys
from pathlib import Path
from qmaps.capture import load

def memory(name):
    [line] = [x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(name)]
    return int(line.split()[1]) * 1024

states = load(sys.argv[1])
before = memory("VmRSS")
states.fingerprint()
print(memory("VmHWM") - before)
"""


def zeros(path: Path, parameters: int, shape: tuple[int, int]) -> Path:
    """A safetensors file with both moments of some parameters, all 0, and sparse on disk."""
    header, at = {}, 0
    for number in range(parameters):
        for state in ("exp_avg", "exp_avg_sq"):
            end = at + 4 * shape[0] * shape[1]
            entry = {"dtype": "F32", "shape": shape, "data_offsets": [at, end]}
            header[f"layer{number}.weight.{state}"] = entry
            at = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    if path.stat().st_blocks * 512 > 2**24:
        pytest.skip("this file system has no sparse files")
    return path


def measured(path: Path, every: int = 1, *, specs: list[str]) -> tuple[int, int, int]:
    """Items, and rows and peak memory in bytes of each `every`-th item, in a fresh process."""
    command = [sys.executable, "-c", MEASURED, str(path), str(every), *specs]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    items, rows, peak = map(int, done.stdout.split())
    return items, rows, peak


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_file_of_40_gigabytes(tmp_path: Path) -> None:
    path = zeros(tmp_path / "states.safetensors", 298, (4096, 4096))
    assert path.stat().st_size > 39e9
    items, rows, peak = measured(path, 60, specs=SPECS[1:2])
    assert (items, rows) == (298, 5 * 3)
    assert peak < 40 * 4096 * 4096


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_one_parameter_that_is_measured_whole(tmp_path: Path) -> None:
    path = zeros(tmp_path / "states.safetensors", 1, (2**12, 4096))
    items, rows, peak = measured(path, specs=SPECS[::2])
    assert (items, rows) == (1, 5)
    assert 2**28 < peak < 2**31


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_one_tensor_that_is_larger_than_the_memory(tmp_path: Path) -> None:
    shape, limit = (2**13, 2**13), 2**28
    path = zeros(tmp_path / "states.safetensors", 1, shape)
    assert 4 * shape[0] * shape[1] == limit
    specs = ["B128/DE@4s + rank1/linear@4u"]
    items, rows, peak = measured(path, specs=specs)
    assert (items, rows) == (1, 3)
    assert peak < limit


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_digest_of_a_tensor_that_is_larger_than_the_memory(tmp_path: Path) -> None:
    path = zeros(tmp_path / "states.safetensors", 1, (2**13, 2**13))
    command = [sys.executable, "-c", DIGEST, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 2**27
