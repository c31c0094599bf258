"""Every report states its version and commit, and the index has a row on its age.

Git's history is not read here: a clone may be shallow.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from benchmarks import ages
from reproduction import report_file
from reproduction.report_file import MadeAt

pytestmark = pytest.mark.slow


def test_every_report_states_its_version_and_commit() -> None:
    pages = ages.REPORTS.rglob("*.md")
    silent = [page for page in pages if report_file.read(page.read_text("utf-8")) is None]
    assert silent == [ages.INDEX]


def test_the_index_has_the_age_of_every_open_report() -> None:
    text = ages.INDEX.read_text(encoding="utf-8").split("<!-- table: ages -->")[1]
    rows = re.findall(
        r"^\| `(\S+)` \| ([\w.]+) \| `([0-9a-f]{7,})` \| \d{4}-\d\d-\d\d \| (.+) \| "
        r"(?:no|older, 1 commit|older, \d+ commits) \|$",
        text,
        re.MULTILINE,
    )
    assert [name for name, *_ in rows] == ages.reports()
    for name, version, commit, code in rows:
        stated = report_file.read((ages.REPORTS / name).read_text(encoding="utf-8"))
        assert stated == MadeAt(version, commit), name
        assert code == ages.listed(ages.measured(name))


def test_a_closed_report_names_its_command_and_its_commit() -> None:
    index = ages.INDEX.read_text(encoding="utf-8")
    closed = {*ages.REPORTS.rglob("*.md")} - {ages.REPORTS / name for name in ages.reports()}
    for page in closed - {ages.INDEX}:
        line = next(line for line in page.read_text("utf-8").split("\n") if line[:8] == "Closed: ")
        command = re.match(r".* by `(python -m (\S+)[^`]*)` at commit `[0-9a-f]{7,}`\.", line)
        assert command is not None, page
        assert f"closed: `python -m {command[2]}" in index


def test_the_measured_code_exists_and_every_entry_is_of_a_report() -> None:
    assert {
        path
        for paths in ages.MEASURED.values()
        for path in paths
        if not (ages.ROOT / path).exists()
    } == set()
    used = {max((n for n in ages.MEASURED if r.startswith(n)), key=len) for r in ages.reports()}
    assert used == set(ages.MEASURED)


@pytest.mark.parametrize(("changed", "how"), [("", "at"), (" M qmaps/x.py", "with changes to")])
def test_a_report_that_is_written_states_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str, how: str
) -> None:
    answers = {"rev-parse": "0123abc", "status": changed}
    monkeypatch.setattr(report_file, "git", lambda command, *_: answers[command])
    monkeypatch.setattr(report_file.qmaps, "__version__", "1.2.3")
    page, html = tmp_path / "page.md", tmp_path / "page.html"
    report_file.write_report(page, "# Title\n")
    assert page.read_text() == f"# Title\n\nMade with qmaps 1.2.3 {how} commit `0123abc`.\n"
    report_file.write_report(html, "<body>x</body>")
    line = f'<p class="note">Made with qmaps 1.2.3 {how} commit <code>0123abc</code>.</p>'
    assert html.read_text() == f"<body>x{line}\n</body>"
    for file in (page, html):
        assert report_file.read(file.read_text()) == MadeAt("1.2.3", "0123abc")


def test_without_git_a_report_states_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: str) -> str:
        raise subprocess.CalledProcessError(128, "git")

    monkeypatch.setattr(report_file, "git", fail)
    monkeypatch.setattr(report_file.qmaps, "__version__", "1.2.3")
    assert str(report_file.now()) == "Made with qmaps 1.2.3."


def test_a_shallow_clone_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ages, "git", lambda *_: "true")
    assert ages.main() == 2
    assert capsys.readouterr().err == (
        "error: this clone is shallow; run `git fetch --unshallow` first\n"
    )
