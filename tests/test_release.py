"""The files that state the version of the package agree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_version_and_date_agree() -> None:
    version = tomllib.loads(text("pyproject.toml"))["project"]["version"]
    released = re.search(r"^## \[(.+)\] - (\d{4}-\d\d-\d\d)$", text("CHANGELOG.md"), re.MULTILINE)
    assert released is not None
    assert released[1] == version
    citation = dict(re.findall(r"^(version|date-released): (.+)$", text("CITATION.cff"), re.M))
    assert citation == {"version": version, "date-released": released[2]}
    minor = version.rpartition(".")[0]
    assert f"\n| {minor} | yes |\n" in text("SECURITY.md")


def test_the_changelog_has_one_line_for_each_change() -> None:
    listed = text("CHANGELOG.md").partition("\n## ")[2].splitlines()
    assert max(map(len, listed)) <= 120
    assert [line for line in listed if not line.startswith(("- ", "## ", "### ", "["))] == [
        ""
    ] * listed.count("")


@pytest.mark.skipif(not shutil.which("make"), reason="there is no make")
def test_what_make_runs_keeps_compiled_modules() -> None:
    show = "show:\n\t@echo [$$PYTHONDONTWRITEBYTECODE]"
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "MAKEFLAGS": "", "MAKELEVEL": ""}
    command = ["make", "--silent", "--no-print-directory", "--eval", show, "show"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")
