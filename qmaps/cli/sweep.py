"""``qmaps sweep``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qmaps.cli import options, output
from qmaps.storage.files import records

if TYPE_CHECKING:
    import pandas as pd

STATE_COLUMNS = {
    "quantizer": "{label}",
    "bits": "{bits}",
    "mean abs": "{mean_abs_error:.3g}",
    "max abs": "{max_abs_error:.3g}",
    "mean rel": "{mean_rel_error:.3g}",
    "to zero": "{zeroed_share:.2%}",
}
UPDATE = "update"
"""State of the rows of pairs: errors of updates, in learning rates."""


def sweep(
    states: options.States,
    spec: Annotated[
        list[str] | None,
        typer.Option(
            help="A quantizer such as B128/DE@4s, a pair such as 'B128/DE@4s + rank1/linear@4u', "
            "or a preset such as 4bit; may be repeated. By default the standard pairs."
        ),
    ] = None,
    load: options.Load = None,
    codebook: options.CodebookFiles = None,
    out: options.Out = Path("runs/sweep"),
    step: options.Step = None,
    names: options.CheckpointNames = None,
    first: options.First = None,
    second: options.Second = None,
    min_quantized_size: options.MinSize = 4096,
    top: Annotated[int, typer.Option(min=1, help="Rows of each width, those of least error.")] = 5,
    workers: options.Workers = None,
    sample: Annotated[
        float | None,
        typer.Option(
            help="Measure only this share of each tensor, such as 0.01, with a confidence interval "
            "beside each mean in the rows."
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Print a table for each state and width as well.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure quantizers on captured states; the rows go to OUT/sweep/sweep.parquet.

    One table has the best quantizers of each width, in bits per state element, scales included.
    The rows are the same, bit for bit, for any number of workers.

    Examples:

        qmaps sweep states --out runs/mine

        qmaps sweep optimizer.pt --spec "B128/DE@4s + rank1/linear@4u" --spec B64/nf4@4s

        qmaps sweep states --spec B128/mine@3s --codebook mine.json

        qmaps sweep optimizer.pt --first momentum --second fim

        qmaps sweep states --workers 8

        qmaps sweep states --workers 8 --sample 0.01
    """
    from qmaps import capture as captures
    from qmaps import sweep as sweeps
    from qmaps.storage.files import output_folder

    books = options.own_codebooks(load, codebook)
    loaded = options.as_adam(captures.load(states, step=step, names=names), first, second)
    output_folder(out)
    with output.progress(quiet=as_json) as advance:
        frame = sweeps.run(
            loaded,
            spec or sweeps.STANDARD,
            out=out / "sweep",
            min_quantized_size=min_quantized_size,
            codebooks=books,
            progress=advance.stage("sweep quantizers"),
            workers=workers,
            sample=sample,
        )
    if as_json:
        output.print_json(records(frame))
        return
    options.print_source(loaded)
    columns, rows, count = _table(frame, top)
    of_all = f"{len(rows)} of {count}" if len(rows) < count else f"{count}"
    output.print_rows(f"{of_all} quantizers, the least errors of each width", columns, rows)
    output.print_text("bits: per state element, scales included. States: mean relative error.")
    if UPDATE in columns:
        output.print_text("update, largest: mean and largest error of updates, in learning rates.")
    if every:
        for state in frame["state"].unique():
            summary = _summary(frame, state)
            for title, of_width in output.by_width(summary, before=f"{state}, ", top=top):
                output.print_lines("")
                output.print_rows(title, STATE_COLUMNS, of_width)
    output.print_lines(f"rows: {out / 'sweep' / 'sweep.parquet'}")


def _table(frame: pd.DataFrame, top: int) -> tuple[dict[str, str], list[dict[str, Any]], int]:
    """Columns and rows of one table, and the number of rows without `top`.

    Rows are pairs, and quantizers that are in none: of each width those of least error, ordered by
    their bits.
    """
    import pandas as pd

    summaries = {state: _summary(frame, state) for state in frame["state"].unique()}
    updates = summaries.pop(UPDATE, None)
    found = {
        (state, row["quantizer"]): row
        for state, summary in summaries.items()
        for row in records(summary)
    }
    rows = [] if updates is None else records(updates)
    pairs = frame[frame["state"] == UPDATE]
    members = {
        row["quantizer"]: (row["first"], row["second"])
        for row in records(pairs.drop_duplicates("quantizer"))
    }
    in_pairs = {spec for pair in members.values() for spec in pair}
    for (_, spec), row in found.items():
        if spec not in in_pairs and spec not in members:
            members[spec] = (spec,) * len(summaries)
            rows.append({**row, "mean_abs_error": math.inf, "max_abs_error": math.nan})

    shown = []
    for row in rows:
        by_state = {}
        for state, spec in zip(summaries, members[row["quantizer"]], strict=False):
            error = found.get((state, spec))
            by_state[state] = "-" if error is None else f"{error['mean_rel_error']:.3g}"
        has_update = math.isfinite(row["max_abs_error"])
        update = f"{row['mean_abs_error']:.3g}" if has_update else "-"
        largest = f"{row['max_abs_error']:.3g}" if has_update else "-"
        shown.append({**row, "errors": {**by_state, UPDATE: update, "largest": largest}})
    measured = [*summaries, *((UPDATE, "largest") if rows and updates is not None else ())]
    columns = {"quantizer": "{label}", "bits": "{bits}"}
    columns |= {name: f"{{errors[{name}]}}" for name in measured}
    ordered = pd.DataFrame(shown).sort_values("mean_abs_error", kind="stable")
    few = [row for _, rows in output.by_width(ordered, top=top) for row in rows]
    few.sort(key=lambda row: (row["bits_per_element"], row["mean_abs_error"]))
    return columns, few, len(ordered)


def _summary(frame: pd.DataFrame, state: str) -> pd.DataFrame:
    """A row for each quantizer of a state, least error first, with presets."""
    from qmaps import sweep as sweeps
    from qmaps.analyze.recommend.candidates import PRESETS

    rows = sweeps.summarize(frame, state=state).sort_values("mean_abs_error")
    return rows.assign(preset=rows["quantizer"].map(PRESETS).fillna(""))
