"""The command that compiles every kernel without a GPU."""

from __future__ import annotations

import pytest

from benchmarks.gpu import kernels as catalogue
from benchmarks.gpu.kernels import USAGE, main
from qmaps.cuda import compiler
from qmaps.cuda.compiler import Entry, kernel
from qmaps.cuda.source import kernels

pytestmark = pytest.mark.slow

needs_nvrtc = pytest.mark.skipif(bool(compiler.missing()), reason=compiler.missing())
GRIDS = kernel("new_tensor_grids")


def test_the_catalogue_has_every_kernel() -> None:
    assert {entry.name.split("<")[0]: entry.file for entry in catalogue.entries()} == kernels()
    assert len(kernels()) > 20
    assert kernel("step", "Kind<Lion>") == Entry("step.cuh", "step<Kind<Lion>>")


@needs_nvrtc
def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "entries", lambda **_: [GRIDS])
    assert main(["--arch", "sm_90", "--quick"]) == 0
    architecture, names, row, summary = capsys.readouterr().out.splitlines()
    registers, *counts, name = row.split()
    assert (architecture, name) == ("sm_90", "new_tensor_grids")
    assert names.split() == [*USAGE, "kernel"]
    assert int(registers) > 10
    assert counts[:2] == ["0", "0"]
    assert summary.startswith("sm_90: 1 kernels in ")
    assert main(["--arch", "sm_75", "--arch", "sm_90", "--summary"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["sm_75", "sm_90"]
    assert lines[1].endswith(f", up to {registers} registers, 0 bytes spilled")
    spilling = dict.fromkeys(USAGE, 4)
    monkeypatch.setattr(catalogue, "usage", lambda _: spilling)
    assert main(["--arch", "sm_90"]) == 1
    assert main(["--arch", "sm_1"]) == 2
    assert "error: arch='sm_1' is not supported" in capsys.readouterr().err
