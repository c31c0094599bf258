"""Options and the choice of cases, for the commands of benchmarks."""

from __future__ import annotations

import argparse
import fnmatch
import functools
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

import pandas as pd

from qmaps.errors import QmapsError, nearest
from qmaps.storage.files import output_folder, write_json, write_text
from reproduction.report_file import write_report


def command_line(module: str, argv: Sequence[str] | None) -> str:
    """Command line of `module`, for reports.

    Args:
        module: name of the module.
        argv: its arguments; None for those of this process.
    """
    return shlex.join(["python", "-m", module, *(sys.argv[1:] if argv is None else argv)])


def one_line_errors(main: Callable[P, int]) -> Callable[P, int]:
    """Let a command end with one line on stderr and status 2 where qmaps raises an error."""

    @functools.wraps(main)
    def run(*arguments: P.args, **options: P.kwargs) -> int:
        try:
            return main(*arguments, **options)
        except QmapsError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2

    return run


def among(
    parser: argparse.ArgumentParser, what: str, names: Sequence[str], allowed: Sequence[str]
) -> None:
    """Exit with a message if a name is unknown.

    Args:
        parser: parser of the command.
        what: kind of the names, for the message.
        names: given names.
        allowed: allowed names.
    """
    for name in names:
        if name not in allowed:
            parser.error(f"unknown {what} {name!r}; allowed are {', '.join(allowed)}")


class Named(Protocol):
    """A case."""

    @property
    def name(self) -> str:
        """Name of the work."""
        ...


P = ParamSpec("P")
N = TypeVar("N", bound=Named)


def shared_options(program: str, doc: str | None, *, rounds: int, budget: float, out: str) -> (
    argparse.ArgumentParser
):  # fmt: skip
    """Options common to all commands.

    Args:
        program: command line of the program.
        doc: description of the program.
        rounds: default of ``--rounds``.
        budget: default of ``--budget``.
        out: folder of the results, below ``reports`` or ``runs``.
    """
    parser = argparse.ArgumentParser(prog=program, description=doc)
    parser.add_argument(
        "--case",
        action="append",
        default=[],
        metavar="PATTERN",
        help="only cases whose name holds this text; * and ? stand for any text or character; "
        "may be given several times",
    )
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--scale", type=positive, default=1.0, help="size of the work; 1 is full")
    parser.add_argument(
        "--rounds", type=count, default=rounds, help=f"counted rounds of each case ({rounds})"
    )
    parser.add_argument(
        "--budget",
        type=positive,
        default=budget,
        metavar="SECONDS",
        help=f"a slower method of a case takes fewer rounds, at least two (default {budget:g})",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help=f"folder of the results (default reports/{out}; runs/{out} with --case or --scale)",
    )
    return parser


def study_options(
    module: str, doc: str | None, *, rounds: int | None = None, out: str = "reports"
) -> argparse.ArgumentParser:
    """The options of a study: counted rounds, where it has any, and the folder of its results."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=doc)
    if rounds is not None:
        parser.add_argument(
            "--rounds", type=count, default=rounds, help=f"that count (default {rounds})"
        )
    parser.add_argument("--out", type=Path, default=Path(out), help=f"results (default {out})")
    return parser


def written(out: Path, name: str, page: str, results: Any = None) -> int:
    """Write a study's page, with its results as JSON or its rows as CSV beside, and print it.

    Returns:
        0, the status of the command.
    """
    out = output_folder(out)
    if isinstance(results, pd.DataFrame):
        write_text(out / f"{name}.csv", results.to_csv(index=False, lineterminator="\n"))
    elif results is not None:
        write_json(out / f"{name}.json", results)
    write_report(out / f"{name}.md", page)
    print(page)
    return 0


def selected(
    parser: argparse.ArgumentParser, patterns: Sequence[str], cases: Sequence[N]
) -> list[N]:
    """The cases whose names match a pattern, or all; exits with a message if there are none."""
    wanted = [f"*{pattern.lower()}*" for pattern in patterns] or ["*"]
    matching = [
        case
        for case in cases
        if any(fnmatch.fnmatchcase(case.name.lower(), pattern) for pattern in wanted)
    ]
    if not matching:
        closest = nearest(patterns[0], [case.name for case in cases])
        parser.error(f"--case={patterns[0]!r} fits no case{closest}; --list names them all")
    return matching


def folder(options: argparse.Namespace, out: str) -> Path:
    """Folder of the results: a run of some cases, or of smaller ones, is no report."""
    if options.out is not None:
        return Path(options.out)
    complete = not options.case and options.scale == 1.0
    return Path("reports" if complete else "runs") / out


def positive(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0")
    return value


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)
