"""``qmaps sweep``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from qmaps.cli.options import AsJson, Codebooks, MinSize, Out, States, as_codebook
from qmaps.cli.output import print_json, print_table, progress


def sweep(
    states: States,
    spec: Annotated[
        list[str] | None,
        typer.Option(
            help="A quantizer such as B128/DE@4s, or a pair such as "
            "'B128/DE@4s + rank1/linear@4u'; may be repeated. By default the standard pairs."
        ),
    ] = None,
    out: Out = Path("runs/sweep"),
    step: Annotated[
        int | None, typer.Option(help="Captured step; by default the last one.")
    ] = None,
    codebook: Codebooks = None,
    min_quantized_size: MinSize = 4096,
    top: Annotated[int, typer.Option(min=1, help="Rows to print.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Measure quantizers on captured states; the rows go to OUT/sweep/sweep.parquet.

    Examples:

        qmaps sweep states --out runs/mine

        qmaps sweep optimizer.pt --spec "B128/DE@4s + rank1/linear@4u" --spec B64/nf4@4s
    """
    from qmaps import capture as captures
    from qmaps import sweep as sweeps
    from qmaps.storage.files import output_folder

    loaded = captures.load(states, step=step)
    output_folder(out)
    with progress(quiet=as_json) as advance:
        frame = sweeps.run(
            loaded,
            spec or sweeps.STANDARD,
            out=out / "sweep",
            min_quantized_size=min_quantized_size,
            codebooks=[as_codebook(given) for given in codebook or []],
            progress=lambda done, total, note: advance("sweep quantizers", done, total, note),
        )
    if as_json:
        print_json(json.loads(frame.to_json(orient="records")))
        return
    for state in frame["state"].unique():
        rows = sweeps.summarize(frame, state=state).sort_values("mean_abs_error").head(top)
        print_table(
            f"{state}: all tensors together, least mean absolute error first",
            ["quantizer", "bits", "mean abs", "max abs", "mean rel", "to zero"],
            [
                [
                    row["quantizer"],
                    f"{row['bits_per_element']:.2f}",
                    f"{row['mean_abs_error']:.3g}",
                    f"{row['max_abs_error']:.3g}",
                    f"{row['mean_rel_error']:.3g}",
                    f"{row['zeroed_share']:.2%}",
                ]
                for row in rows.to_dict("records")
            ],
        )
    if loaded.naming.startswith("numbers"):
        print(f"parameter names: {loaded.naming}")
    print(f"rows: {out / 'sweep' / 'sweep.parquet'}")
