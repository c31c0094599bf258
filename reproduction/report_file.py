"""Writing of reports, each with the version and the commit of its code."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import qmaps
from qmaps.storage.files import write_text

ROOT = Path(__file__).parents[1]
CODE = ("qmaps", "reproduction", "benchmarks")
"""Packages with uncommitted changes worth a note in a report."""
CLOSED = "65a89a2e"
"""The last commit with the commands of closed studies."""
LINE = re.compile(r"Made with qmaps ([\w.]+)[^.`]*? commit (?:`|<code>)([0-9a-f]{7,40})")


@dataclass(frozen=True)
class MadeAt:
    """Origin of a report.

    Attributes:
        version: of qmaps.
        commit: abbreviated hash; empty if there is no git repository.
        how: the words between both.
    """

    version: str
    commit: str
    how: str = "at"

    def __str__(self) -> str:
        commit = f" {self.how} commit `{self.commit}`" if self.commit else ""
        return f"Made with qmaps {self.version}{commit}."


def closed(command: str) -> str:
    """Return the command of a closed study, as text between backticks."""
    return f"{command}` at commit `{CLOSED}"


def now() -> MadeAt:
    """Return the version and commit of this checkout."""
    try:
        commit = git("rev-parse", "--short=7", "HEAD")
        changed = git("status", "--porcelain", "--", *CODE)
    except (OSError, subprocess.CalledProcessError):
        return MadeAt(qmaps.__version__, "")
    return MadeAt(qmaps.__version__, commit, "with changes to" if changed else "at")


def read(text: str) -> MadeAt | None:
    """Return the origin stated in a report's text, or None."""
    match = LINE.search(text)
    return MadeAt(match[1], match[2]) if match else None


def stamped(text: str, origin: MadeAt, *, html: bool = False) -> str:
    """Return a report's text with its origin in the last line."""
    if html:
        line = re.sub(r"`([^`]*)`", r"<code>\1</code>", str(origin))
        head, end, tail = text.rpartition("</body>")
        return f'{head}<p class="note">{line}</p>\n{end}{tail}'
    return f"{text.rstrip()}\n\n{origin}\n"


def write_report(path: Path, text: str) -> None:
    """Write a report in Markdown or HTML with the version and the commit of its code."""
    write_text(path, stamped(text, now(), html=path.suffix == ".html"))


def git(*arguments: str) -> str:
    """Return the output of a git command in this checkout, without the last line break."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.rstrip("\n")
