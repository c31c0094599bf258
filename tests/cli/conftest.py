"""Captured states of two steps, and a checkpoint without names."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from qmaps.capture import StateRecorder
from qmaps.cli import main

NAMES = ["layers.0.weight", "layers.0.bias", "layers.1.weight"]
SHAPES = [(80, 90), (80,), (64, 80)]


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``states`` of steps 1 and 2, ``optimizer.pt`` of step 2 without names, ``names.txt``."""
    folder = tmp_path_factory.mktemp("tools")
    draw = torch.Generator().manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(shape, generator=draw)) for shape in SHAPES]
    optimizer = torch.optim.AdamW(weights)
    with StateRecorder(
        optimizer, folder / "states", names=list(zip(NAMES, weights, strict=True)), every=1
    ):
        for step in range(2):
            for weight in weights:
                weight.grad = torch.randn(weight.shape, generator=draw) * 10.0**-step
            optimizer.step()
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    (folder / "names.txt").write_text("\n".join(NAMES))
    return folder


@pytest.fixture
def call(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], tuple[int, str, str]]:
    """Run a command in `place`; return its exit code, output and errors."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "160")

    def run(command: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(shlex.split(command))
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run
