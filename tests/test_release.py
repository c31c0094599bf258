"""Files with the version of the package agree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from qmaps.algebra.rounding import Rounding
from qmaps.errors import SpecError

ROOT = Path(__file__).parents[1]


def test_version_and_date_agree() -> None:
    """Between releases the version is the next one, with the suffix .dev0."""
    version = tomllib.loads(text("pyproject.toml"))["project"]["version"]
    released = re.search(r"^## \[(.+)\] - (\d{4}-\d\d-\d\d)$", text("CHANGELOG.md"), re.MULTILINE)
    assert released is not None
    going_on = "\n## [Unreleased]\n" in text("CHANGELOG.md")
    assert version.endswith(".dev0") == going_on
    if going_on:
        assert numbers(version.removesuffix(".dev0")) > numbers(released[1])
    else:
        assert released[1] == version
    citation = dict(re.findall(r"^(version|date-released): (.+)$", text("CITATION.cff"), re.M))
    assert citation == {"version": released[1], "date-released": released[2]}
    minor = released[1].rpartition(".")[0]
    assert f"\n| {minor} | yes |\n" in text("SECURITY.md")


def test_messages_name_the_version_that_removed_something() -> None:
    version = tomllib.loads(text("pyproject.toml"))["project"]["version"]
    with pytest.raises(SpecError) as caught:
        Rounding("+ef4")
    named = re.search(r"removed in version ([\d.]+);", str(caught.value))
    assert named is not None
    assert numbers(named[1]) <= numbers(version.removesuffix(".dev0"))


def numbers(version: str) -> list[int]:
    return list(map(int, version.split(".")))


def test_the_changelog_has_one_line_for_each_change() -> None:
    listed = text("CHANGELOG.md").partition("\n## ")[2].splitlines()
    assert max(map(len, listed)) <= 120
    assert [line for line in listed if not line.startswith(("- ", "## ", "### ", "["))] == [
        ""
    ] * listed.count("")


@pytest.mark.skipif(not shutil.which("make"), reason="there is no make")
def test_make_keeps_compiled_modules() -> None:
    show = "show:\n\t@echo [$$PYTHONDONTWRITEBYTECODE]"
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "MAKEFLAGS": "", "MAKELEVEL": ""}
    command = ["make", "--silent", "--no-print-directory", "--eval", show, "show"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")
