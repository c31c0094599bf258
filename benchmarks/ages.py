"""Ages of reports: the table of reports/README.md with later commits to the measured code.

``python -m benchmarks.ages`` reads git's history, writes the table, and adds the missing lines on
version and commit to reports. It needs the full history; a shallow clone is not enough.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.command import one_line_errors
from benchmarks.markdown import markdown
from benchmarks.readme import replaced
from qmaps.errors import BadValueError
from qmaps.storage.files import write_text
from reproduction.report_file import ROOT, MadeAt, git, now, read, stamped

REPORTS = ROOT / "reports"
INDEX = REPORTS / "README.md"
MATHEMATICS = ("qmaps/maps", "qmaps/normalize", "qmaps/algebra")
STEPS = ("qmaps/optim", "qmaps/engines", "qmaps/ops")
MEASURED = {
    "": (*MATHEMATICS, *STEPS),
    "bench/": (*STEPS, "qmaps/algebra"),
    "checkpoints": ("qmaps/storage", "qmaps/capture"),
    "communication": ("qmaps/distributed", "qmaps/engines", "qmaps/ops"),
    "losses/lpmm": (*MATHEMATICS, "qmaps/lpmm"),
    "gpu/": ("qmaps/cuda", "qmaps/engines/kernels"),
    "gpu/sass": ("qmaps/cuda/src", "qmaps/cuda/codebooks.py", "qmaps/engines/kernels"),
    "gpu/triton": ("qmaps/engines/triton", "qmaps/engines/search_tables.py"),
    "low-precision-model-memory/": (*MATHEMATICS, "qmaps/lpmm"),
    "monitor": ("qmaps/capture",),
    "offload": STEPS,
    "papers": ("reproduction", *MATHEMATICS, *STEPS),
    "recorders": ("qmaps/capture", "qmaps/sweep"),
    "release": STEPS,
    "scale": ("qmaps/sweep", "qmaps/engines"),
    "speedup/": ("reproduction/speedup", "qmaps/distributed"),
}
"""Folders of the measured code, by the first words of a report's name; the longest match counts."""


def reports() -> list[str]:
    """Return the names of all open reports, relative to their folder."""
    paths = [path for path in sorted(REPORTS.rglob("*.md")) if path != INDEX]
    open_ = [path for path in paths if "\nClosed: " not in path.read_text(encoding="utf-8")]
    return [path.relative_to(REPORTS).as_posix() for path in open_]


def measured(report: str) -> tuple[str, ...]:
    """Return the folders of the code measured by a report."""
    return MEASURED[max((name for name in MEASURED if report.startswith(name)), key=len)]


def listed(paths: Sequence[str]) -> str:
    """Return folders as text; those of the package without its name."""
    return ", ".join(path.removeprefix("qmaps/") for path in paths)


def origin(path: Path) -> MadeAt:
    """Return the last commit to change a report or its data."""
    data = [path.with_suffix(suffix) for suffix in (".csv", ".json")]
    files = [file for file in data if file.exists()] or [path]
    commit = git("log", "-1", "--format=%h", "--abbrev=7", "--", *map(str, files))
    if not commit:
        return now()
    project = git("show", f"{commit}:pyproject.toml")
    version = re.search(r'^version = "(.+)"$', project, re.MULTILINE)
    return MadeAt(version[1] if version else "unknown", commit, "and last changed in")


def table() -> list[str]:
    """Rows of reports: version, commit, date, and later commits to the measured code."""
    rows = []
    for name in reports():
        made = read((REPORTS / name).read_text(encoding="utf-8"))
        if made is None:
            raise BadValueError(f"reports/{name} must state its version and commit")
        paths = measured(name)
        date = git("show", "-s", "--format=%cs", made.commit)
        later = int(git("rev-list", "--count", f"{made.commit}..HEAD", "--", *paths))
        age = f"older, {later} commits" if later > 1 else "older, 1 commit" if later else "no"
        rows.append((f"`{name}`", made.version, f"`{made.commit}`", date, listed(paths), age))
    return markdown(("report", "version", "commit", "date", "code", "older than it?"), rows)


@one_line_errors
def main(_: Sequence[str] | None = None) -> int:
    """Add missing lines to reports, and write the table."""
    if git("rev-parse", "--is-shallow-repository") == "true":
        raise BadValueError("this clone is shallow; run `git fetch --unshallow` first")
    for path in REPORTS.rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        if path != INDEX and read(text) is None:
            write_text(path, stamped(text, origin(path)))
    write_text(INDEX, replaced(INDEX.name, INDEX.read_text(encoding="utf-8"), "ages", table()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
