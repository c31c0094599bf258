"""The name on the package index, and another project with our module name."""

from __future__ import annotations

import re
import subprocess
import tomllib
import warnings
from importlib import metadata
from pathlib import Path

import pytest

import qmaps
from qmaps import distribution
from qmaps.ops.backends import backends
from qmaps.optim import doctor

ROOT = Path(__file__).parents[1]


def test_the_constant_is_the_name_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == distribution.DISTRIBUTION
    assert qmaps.__version__ == metadata.version(distribution.DISTRIBUTION)
    extras = project["optional-dependencies"]
    of_ours = [line for lines in extras.values() for line in lines if "qmaps" in line]
    assert of_ours
    assert all(line.startswith(f"{distribution.DISTRIBUTION}[") for line in of_ours)
    assert distribution.install("lab") == 'pip install "torch-qmaps[lab]"'


def test_no_line_installs_the_other_project() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    files = listed.stdout.split() or pytest.skip("not a checkout")
    pattern = re.compile(r"""pip install ["']?qmaps(\[|["'` ]|$)|["'`]qmaps\[""", re.MULTILINE)
    lines = [
        name
        for name in files
        if name.endswith((".py", ".md", ".toml", ".yml", ".ipynb", "Makefile", "run", "wheels"))
        and not name.startswith("reports/")
        and name not in ("CHANGELOG.md", "tests/test_distribution.py")
        and pattern.search((ROOT / name).read_text(encoding="utf-8"))
    ]
    assert lines == []


@pytest.fixture
def conflict(monkeypatch: pytest.MonkeyPatch) -> str:
    """Install the other project's metadata; return its message."""
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda n: "0.0.1" if n == "qmaps" else version(n))
    return (
        "the distribution qmaps 0.0.1 is installed beside torch-qmaps; both install the module "
        "qmaps, and each replaces files of the other"
    )


def test_the_other_project_is_named(conflict: str) -> None:
    message = f"{conflict}; pip uninstall -y qmaps, then install torch-qmaps again"
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        distribution.warn_of_conflict()
    cpu = {"threads": 1, "cores": 1}
    actual = list(doctor.findings(backends(), cpu))
    assert (actual[0].level, actual[0].message) == ("problem", f"T{conflict[1:]}.")
    assert actual[0].repair == "pip uninstall -y qmaps, then install torch-qmaps again."


def test_without_it_there_is_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    version = metadata.version
    monkeypatch.setattr(metadata, "version", none)
    assert (distribution.conflict(), distribution.version()) == ("", "0+unknown")
    # Installed from a checkout before the distribution had its name.
    monkeypatch.setattr(metadata, "version", lambda n: "0.3.0" if n == "qmaps" else none(n))
    assert (distribution.conflict(), distribution.version()) == ("", "0+unknown")
    monkeypatch.setattr(metadata, "version", version)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        distribution.warn_of_conflict()
