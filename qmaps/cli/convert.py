"""``qmaps convert``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qmaps.cli.options import AsJson
from qmaps.cli.output import print_json, print_lines, print_table
from qmaps.errors import BadValueError

if TYPE_CHECKING:
    from qmaps.capture.conversion.report import UpdateRow


def convert(
    checkpoint: Annotated[Path, typer.Argument(help="An optimizer checkpoint, a file or folder.")],
    out: Annotated[Path, typer.Argument(help="The file or folder to write.")],
    to: Annotated[str, typer.Option(help="Format, such as torch, bitsandbytes, torchao or qmaps.")],
    states: Annotated[
        list[str] | None,
        typer.Option(
            help="32bit, 8bit, 4bit or fp8, as far as the target has them; for qmaps also a preset "
            "or STATE=SPEC, which may be repeated. By default codes are kept if the target can "
            "hold them, and a checkpoint of torch becomes an 8-bit one."
        ),
    ] = None,
    zeros: Annotated[
        str,
        typer.Option(
            help="What to do with second moments that decode to 0 while the first moment does not: "
            "raise them to the smallest value of their format, or leave them."
        ),
    ] = "raise",
    source: Annotated[
        str | None, typer.Option("--from", help="Format of the checkpoint; detected by default.")
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="The optimizer family, such as lion or sgd, if a checkpoint of bitsandbytes does "
            "not say which."
        ),
    ] = None,
    distributed: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Write a folder of torch.distributed.checkpoint, such as FSDP loads, with the "
            "state_dict under this key.",
        ),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="With --to torch: write a copy of this checkpoint of DeepSpeed, Megatron or "
            "torch.distributed.checkpoint with the states, in 32 bits, in place of its own.",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")] = False,
    top: Annotated[int, typer.Option(min=1, help="Rows to print, largest errors first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Convert an optimizer checkpoint between torch, bitsandbytes, torchao and qmaps.

    Codes and codebooks are kept exactly if the target can hold them; otherwise values are
    decoded and encoded again. The error of each parameter and state is reported.

    Examples:

        qmaps convert optimizer.pt converted.pt --to qmaps

        qmaps convert optimizer.pt converted.pt --to bitsandbytes --json

        qmaps convert in.pt out.pt --to qmaps --states exp_avg=B128/DE@4s --zeros leave

        qmaps convert global_step500 optimizer.pt --to qmaps --states 4bit

        qmaps convert step-500 step-500-4bit --to qmaps --states 4bit --distributed optimizer

        qmaps convert optimizer.pt global_step900 --to torch --like global_step500
    """
    from qmaps.capture.conversion import convert_file

    reports = convert_file(
        checkpoint,
        out,
        to=to,
        states=_wanted_states(states),
        zeros=zeros,
        source=source,
        optimizer=optimizer,
        overwrite=overwrite,
        distributed=distributed,
        like=like,
    )
    if as_json:
        print_json([report.as_dict() for report in reports])
        return
    for report in reports:
        rows = sorted(report.states, key=lambda row: row.max_abs_error, reverse=True)
        print_table(
            f"{report.source} to {report.target}: {len(rows)} states, "
            + ("all of them bit for bit" if report.lossless else "largest error first"),
            ["parameter", "state", "was", "became", "how", "max abs error", "mean rel error"],
            [
                [
                    row.parameter,
                    row.state,
                    row.was,
                    row.became,
                    row.how,
                    f"{row.max_abs_error:.3g}",
                    f"{row.mean_rel_error:.3g}",
                ]
                for row in rows[:top]
            ],
        )
        _print_updates(report.updates, top)
        for note in report.notes:
            print_lines(f"note: {note}")


def _wanted_states(values: list[str] | None) -> str | dict[str, str | None] | None:
    """The value of the option --states: a name, or specs by state."""
    if not values:
        return None
    if len(values) == 1 and "=" not in values[0]:
        return values[0]
    specs: dict[str, str | None] = {}
    for pair in values:
        state, separator, spec = pair.partition("=")
        if not separator:
            raise BadValueError(f"states={pair!r} must be STATE=SPEC when several are given")
        specs[state] = None if spec == "32bit" else spec
    return specs


def _print_updates(updates: Sequence[UpdateRow], top: int) -> None:
    """Print the errors of a conversion in Adam's updates."""
    rows = sorted(updates, key=lambda row: row.max_abs_error, reverse=True)
    if rows:
        print_table(
            "Adam update m / (sqrt(v) + eps), and zeros of v under a non-zero m",
            [
                "parameter",
                "max abs error",
                "mean rel error",
                "zeros",
                "of source",
                "raised",
                "first at",
            ],
            [
                [
                    row.parameter,
                    f"{row.max_abs_error:.3g}",
                    f"{row.mean_rel_error:.3g}",
                    str(row.zeros.found),
                    str(row.zeros.inherited),
                    str(row.zeros.raised),
                    ", ".join(map(str, row.zeros.first)),
                ]
                for row in rows[:top]
            ],
        )
