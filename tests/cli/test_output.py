"""The command line in unusual terminals and environments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qmaps.storage.files import write_frame
from tests.figures.synthetic import FRAMES

pytestmark = pytest.mark.slow


def shell(command: str, folder: Path, **environment: str) -> tuple[int, str, str]:
    """Run a command of a shell in a folder; ``qmaps`` is this package."""
    done = subprocess.run(
        ["sh", "-c", f'qmaps() {{ {sys.executable} -m qmaps "$@"; }}; {command}'],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(os.name == "nt", reason="its shell closes no descriptors")
def test_closed_output_is_no_error(call, place: Path, tmp_path: Path) -> None:
    convert = f"qmaps convert optimizer.pt {tmp_path}/out.pt --to torch"
    assert shell(f"{convert} >&- 2>&- <&-", place) == (0, "", "")
    # Otherwise the first opened file would be descriptor 1 and receive the output.
    written = (tmp_path / "out.pt").read_bytes()
    assert call(f"{convert[6:]} --overwrite")[0] == 0
    assert (tmp_path / "out.pt").read_bytes() == written


def test_an_instruction_set_that_there_is_not_is_one_line(place: Path) -> None:
    code, out, err = shell("qmaps doctor --seconds 0", place, QMAPS_ISA="zz")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: QMAPS_ISA='zz' is not available on this processor; allowed are ")


@pytest.mark.skipif(sys.platform != "linux", reason="paths are text elsewhere")
def test_paths_that_are_no_text(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "d\udcff"
    shutil.copytree(place, folder)
    command = "qmaps sweep states/*1.safetensors --spec B128/DE@4s --out r"
    code, out, err = shell(f"set -- \udcff; {command}$1", folder, PYTHONIOENCODING="utf-8:strict")
    assert (code, err.count("\n")) == (0, 1)
    assert out.endswith("rows: r\\udcff/sweep/sweep.parquet\n")
    assert shell("qmaps lint ../d*/optimizer.pt", folder) == (
        2,
        "",
        "error: '../d\\udcff/optimizer.pt' cannot be read (torch needs a path in Unicode)\n",
    )


def test_matplotlib_backend_of_the_environment_is_ignored(place: Path, tmp_path: Path) -> None:
    (tmp_path / "frames").mkdir()
    write_frame(tmp_path / "frames" / "update_error.parquet", FRAMES["update_error"])
    command = f"qmaps plot update_error --run {tmp_path} --out {tmp_path}/figure.png"
    code, _, err = shell(command, place, MPLBACKEND="nothing")
    assert (code, err) == (0, "")
    assert (tmp_path / "figure.png").stat().st_size > 1000
