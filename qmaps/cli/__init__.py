"""The command line: the one place that turns names into objects."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

try:
    import typer
    from typer.core import TyperCommand

    from qmaps.cli.output import (
        announce,
        close_output,
        errors,
        prepare_terminal,
        print_error,
        print_lines,
    )
except ImportError as error:  # pragma: no cover - installed without the extra
    from qmaps.distribution import install

    raise SystemExit(
        f"the qmaps command needs {error.name}; install it with {install('lab')}"
    ) from None

from qmaps.cli.figures import figures, plot, report
from qmaps.cli.info import doctor, maps, verify
from qmaps.cli.lab import lab, train
from qmaps.cli.memory import memory
from qmaps.cli.replay import recommend, replay
from qmaps.cli.states import capture, convert, lint
from qmaps.cli.sweep import sweep
from qmaps.errors import QmapsError
from qmaps.storage import __version__

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Which quantizer is safe for your optimizer's states?\n\n"
    "Start with `qmaps lab`, which runs everything once on real data.",
)
COMMANDS = (
    *(lab, train, capture, convert, lint, sweep, replay),
    *(recommend, figures, plot, report, memory, maps, doctor, verify),
)
"""In the order of the help."""


def _version(wanted: bool) -> None:
    """Print the version, and nothing else, if it is asked for."""
    if wanted:
        print_lines(f"qmaps {__version__}")
        raise typer.Exit


QUICK = (figures, plot, report, memory, maps)
"""Commands that import torch for some arguments only."""


class _Command(TyperCommand):
    """A command that imports torch."""

    def invoke(self, ctx: Any) -> Any:
        announce()
        return super().invoke(ctx)


for command in COMMANDS:
    app.command(cls=TyperCommand if command in QUICK else _Command)(command)


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

# ClickException: newer versions of typer carry click inside, older ones depend on it.
CommandLineError: Any = typer.BadParameter.__mro__[2]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the ``qmaps`` command."""
    run_app(app, arguments)


def run_app(app: typer.Typer, arguments: Sequence[str] | None = None) -> None:
    """Run a command line; bad input is one line on stderr and exit code 2."""
    prepare_terminal()
    try:
        code = app(args=None if arguments is None else list(arguments), standalone_mode=False)
        sys.stdout.flush()
    except CommandLineError as error:
        message = " ".join(error.format_message().split())
        if message:  # empty if the help was shown instead
            print_error(message)
        raise SystemExit(error.exit_code) from None
    except QmapsError as error:
        print_error(str(error))
        raise SystemExit(2) from None
    except BrokenPipeError:  # the reader has closed the pipe
        close_output()
        raise SystemExit(1) from None
    except OSError as error:  # a full disk, a folder without permission
        place = "" if error.filename is None else f"{str(error.filename)!r}: "
        print_error(f"{place}{error.strerror or error}")
        raise SystemExit(2) from None
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:  # newer versions of typer return it for Ctrl-C
        errors.print("interrupted; the same command goes on from here")
    raise SystemExit(code if isinstance(code, int) else 0)
