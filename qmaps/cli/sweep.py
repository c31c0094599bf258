"""``qmaps sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qmaps.cli import options, output
from qmaps.storage.files import records

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    "quantizer": "{label}",
    "bits": "{bits_per_element:.2f}",
    "mean abs": "{mean_abs_error:.3g}",
    "max abs": "{max_abs_error:.3g}",
    "mean rel": "{mean_rel_error:.3g}",
    "to zero": "{zeroed_share:.2%}",
}
ORDER = "All tensors together, least mean absolute error first."


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
    min_quantized_size: options.MinSize = 4096,
    top: Annotated[int, typer.Option(min=1, help="Rows of each width.")] = 5,
    workers: options.Workers = None,
    sample: Annotated[
        float | None,
        typer.Option(
            help="Measure only this share of each tensor, such as 0.01, with a confidence interval "
            "beside each mean in the rows."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure quantizers on captured states; the rows go to OUT/sweep/sweep.parquet.

    The tables are grouped by bits per element, scales included. The rows are the same, bit for bit,
    for any number of workers.

    Examples:

        qmaps sweep states --out runs/mine

        qmaps sweep optimizer.pt --spec "B128/DE@4s + rank1/linear@4u" --spec B64/nf4@4s

        qmaps sweep states --spec B128/mine@4s --codebook mine.json

        qmaps sweep states --workers 8

        qmaps sweep states --workers 8 --sample 0.01
    """
    from qmaps import capture as captures
    from qmaps import sweep as sweeps
    from qmaps.storage.files import output_folder

    books = options.own_codebooks(load, codebook)
    loaded = captures.load(states, step=step, names=names)
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
    for state in frame["state"].unique():
        for title, rows in output.by_width(_summary(frame, state), before=f"{state}, ", top=top):
            output.print_rows(title, COLUMNS, rows)
    output.print_lines(ORDER)
    output.print_lines(f"rows: {out / 'sweep' / 'sweep.parquet'}")


def _summary(frame: pd.DataFrame, state: str) -> pd.DataFrame:
    """A row for each quantizer of a state, least error first, with presets."""
    from qmaps import sweep as sweeps
    from qmaps.analyze.recommend.candidates import PRESETS

    rows = sweeps.summarize(frame, state=state).sort_values("mean_abs_error")
    return rows.assign(preset=rows["quantizer"].map(PRESETS).fillna(""))
