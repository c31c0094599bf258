"""The engine's threads: after a fork, with several callers, and at exit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import qmaps
from qmaps.optim import AdamW, AdamW8bit

pytestmark = pytest.mark.slow

TRAINING = """
import hashlib, os, sys
import torch
from qmaps.optim import AdamW8bit

torch.set_num_threads(2)
param = torch.nn.Parameter(torch.randn(300_000))
param.grad = torch.randn(300_000)
optimizer = AdamW8bit([param])
optimizer.step()
"""
COMPARE = """
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, stepped())
    os._exit(0)
sys.exit(0 if stepped() == os.read(read, 32) else 1)
"""


STEPPED = """
from qmaps.optim import AdamW
ones = torch.ones(100_000, 3).mul_(0.5)  # starts torch's own threads
trained = []
for dtype, options in (
    (torch.float32, {"nonfinite": "raise"}),
    (torch.float32, {"state_quantizers": {"exp_avg_sq": "row/linear@4u"}}),
    (torch.bfloat16, {"master_weights": True}),
    (torch.bfloat16, {"master_weights": "bf16+8"}),
):
    new = torch.nn.Parameter(ones.to(dtype, copy=True))
    new.grad = ones.to(dtype, copy=True)
    trained.append((new, AdamW([new], **options)))
trained.append((param, optimizer))

def stepped():
    # torch's own threads hang in a child, so nothing here may need them.
    for _, optimizer in trained:
        optimizer.step()
    found = b"".join(new.detach().view(torch.uint8).numpy().tobytes() for new, _ in trained)
    return hashlib.sha256(found).digest()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_takes_first_steps_and_others_and_the_process_ends_while_threads_wait() -> (
    None
):
    # A process of its own: nobody knows which threads this one has. A hang ends with an error.
    command = [sys.executable, "-c", TRAINING + STEPPED + COMPARE]
    assert subprocess.run(command, check=False, timeout=120).returncode == 0


def test_callers_at_the_same_time_get_the_same_bits() -> None:
    q = qmaps.quantizer("B256/DE@8s")
    tensors = [torch.randn(200_000) for _ in range(8)]
    expected = [q.quantize(x).codes() for x in tensors]
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(4) as callers:
            for _ in range(20):
                actual = callers.map(lambda x: q.quantize(x).codes(), tensors)
                assert all(map(torch.equal, actual, expected))
    finally:
        torch.set_num_threads(threads)


def test_no_races_under_the_thread_sanitizer(tmp_path: Path) -> None:
    """The pool alone, called from several threads; a race makes the sanitizer exit with 66."""
    compiler = shutil.which("c++")
    root, program = Path(__file__).parents[3], tmp_path / "races"
    sources = (
        root / "tests/engines/native/races.cpp",
        root / "qmaps/engines/native/src/thread_pool.cpp",
    )
    options = ("-std=c++20", "-O1", "-g", "-fsanitize=thread", "-pthread", "-I", root)
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    empty = tmp_path / "empty.cpp"
    empty.write_text("int main() {}\n")
    works = subprocess.run([compiler, *options, "-o", program, empty], check=False)
    if works.returncode or subprocess.run([program], check=False).returncode:
        pytest.skip("the compiler or the system has no thread sanitizer")
    subprocess.run([compiler, *options, "-o", program, *sources], check=True)
    outcome = subprocess.run([program], check=False, timeout=120, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    count = re.fullmatch(
        r"2000 calls, 0 wrong, (\d+) items by threads of the pool\n", outcome.stdout
    )
    assert count is not None, outcome.stdout
    # Callers without help from the pool cannot race. Of some 199,000 items the pool's
    # threads take a few thousand here, on one busy processor too.
    assert int(count[1]) > 0


@pytest.mark.parametrize("threads", [2, 3, 16])
def test_bits_for_any_number_of_threads(threads: int) -> None:
    def stepped(count: int) -> torch.Tensor:
        torch.manual_seed(1)
        param = torch.nn.Parameter(torch.randn(500_000))
        optimizer = AdamW8bit([param])
        torch.set_num_threads(count)
        for _ in range(5):
            param.grad = torch.randn(500_000, generator=torch.Generator().manual_seed(0))
            optimizer.step()
        return param.detach()

    before = torch.get_num_threads()
    try:
        assert torch.equal(stepped(1), stepped(threads))
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor has no such mode")
def test_subnormals_are_kept_under_torchs_flush_mode() -> None:
    before = torch.get_num_threads()
    gradient = torch.full((300_000,), 1e-40)

    def moment(threads: int) -> torch.Tensor:
        torch.set_num_threads(threads)
        param = torch.nn.Parameter(torch.zeros(300_000))
        param.grad = gradient
        optimizer = AdamW([param])
        optimizer.step()
        return optimizer.state[param]["exp_avg"]

    expected = moment(2)  # with threads without the mode
    assert bool((expected > 0).all())
    torch.set_flush_denormal(True)
    try:
        actual = moment(1), moment(2)
        assert not (gradient[:8] * 1.0).any()  # the caller's own mode stays
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)
    assert torch.equal(actual[0], expected)
    assert torch.equal(actual[1], expected)
