"""New tensors request huge pages, for their own memory alone."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest
import torch

import qmaps
from qmaps.engines import huge_pages
from qmaps.engines.huge_pages import LEAST, PAGE, within
from qmaps.optim import AdamW, AdamW8bit

LINUX = hasattr(mmap, "MADV_HUGEPAGE")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Requests to the system; it refuses all of them."""
    calls: list[tuple[int, int, int]] = []

    def advise(first: int, nbytes: int, advice: int) -> int:
        calls.append((first, nbytes, advice))
        return -1

    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 14, raising=False)
    monkeypatch.setattr(huge_pages, "_system_call", lambda: advise)
    return calls


@pytest.mark.parametrize(
    ("begin", "nbytes", "expected"),
    [
        (PAGE, 2 * PAGE, (PAGE, 2 * PAGE)),
        (PAGE + 64, 2 * PAGE, (2 * PAGE, PAGE)),
        (PAGE - 1, 2 * PAGE, (PAGE, PAGE)),
        (PAGE + 1, 2 * PAGE - 2, (2 * PAGE, 0)),
        (5, 10, (PAGE, 0)),
    ],
)
def test_whole_pages_within_the_memory(begin: int, nbytes: int, expected: tuple[int, int]) -> None:
    assert within(begin, nbytes) == expected


def test_large_tensors_ask_for_their_own_memory(asked: list[tuple[int, int, int]]) -> None:
    x = huge_pages.empty((3, LEAST), dtype=torch.uint8)
    assert (x.shape, x.dtype) == ((3, LEAST), torch.uint8)
    ((first, nbytes, advice),) = asked
    assert advice == 14
    assert first % PAGE == nbytes % PAGE == 0
    assert x.data_ptr() <= first < first + nbytes <= x.data_ptr() + x.nbytes
    assert nbytes >= 2 * LEAST


def test_others_do_not_ask(asked: list[tuple[int, int, int]]) -> None:
    huge_pages.empty((LEAST - 1,), dtype=torch.uint8)
    assert huge_pages.empty((LEAST,), dtype=torch.float32, device="meta").is_meta
    assert asked == []


def test_results_and_states_ask(asked: list[tuple[int, int, int]]) -> None:
    q = qmaps.quantizer("B256/DE@8s")
    t = q.quantize(torch.randn(LEAST))
    assert len(asked) == 1  # the codes
    y = t.dequantize()
    assert len(asked) == 2
    t.dequantize(out=y)
    q.quantize(y, out=t)
    assert len(asked) == 2
    param = torch.nn.Parameter(torch.zeros(LEAST))
    param.grad = torch.ones(LEAST)
    AdamW([param]).step()
    assert len(asked) == 4
    AdamW8bit([param]).step()
    assert len(asked) == 6


def test_without_such_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "_system_call", lambda: None)
    assert huge_pages.empty((LEAST,), dtype=torch.uint8).numel() == LEAST


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir() or not LINUX,
    reason="needs transparent huge pages",
)
def test_the_system_takes_the_advice() -> None:
    x = huge_pages.empty((8 * PAGE,), dtype=torch.uint8)
    first, _ = within(x.data_ptr(), x.nbytes)
    flags = ""
    in_tensor = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            begin, _, end = name.partition("-")
            in_tensor = int(begin, 16) <= first < int(end, 16)
        elif in_tensor and name == "VmFlags:":
            flags = value
    assert "hg" in flags.split(), sys.platform
