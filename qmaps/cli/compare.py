"""``qmaps compare``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qmaps.cli.options import AsJson, MinSize, Out, refuse_given
from qmaps.cli.output import Table, label, print_json, print_lines, progress, write_markdown
from qmaps.errors import BadValueError
from qmaps.storage.files import records

if TYPE_CHECKING:
    import pandas as pd

    from qmaps.analyze.compare import ChoicesCompared, RunsCompared
    from qmaps.capture import CapturedStates

CHOICE, RUN = "a choice of quantizers", "a run's states"
Compared = Annotated[
    Path,
    typer.Argument(
        help="A run folder, captured states or a checkpoint; or a choice (.json, .yaml) of "
        "`qmaps recommend`."
    ),
]


def compare(
    context: typer.Context,
    a: Compared,
    b: Compared,
    states: Annotated[
        Path | None, typer.Option(help="Replay both choices on these states, or of this run.")
    ] = None,
    spec: Annotated[
        list[str] | None,
        typer.Option(help="A pair to measure on both runs; may be repeated. By default presets."),
    ] = None,
    min_quantized_size: MinSize = 4096,
    out: Out = Path("runs/compare"),
    markdown: Annotated[
        Path | None, typer.Option(help="Also write the tables as Markdown to this file.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Most parameters to print.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Put the optimizer states of two runs side by side, or two choices of quantizers.

    Of runs: the magnitudes of Adam's moments, their outliers, and the errors of the presets, for
    each parameter and in all; the frames go to OUT/compare. Of choices: which parameters differ,
    bits and bytes, and with --states the step cost of both.

    Examples:

        qmaps compare runs/lab checkpoint-500 --markdown compared.md

        qmaps compare states/step-00000100.safetensors states/step-00000200.safetensors

        qmaps compare a/recommend/choice.json b/recommend/choice.json --states states
    """
    from qmaps.storage.files import output_file, output_folder, write_frame

    kinds = [_kind(path) for path in (a, b)]
    if kinds[0] != kinds[1]:
        raise BadValueError(
            f"a={str(a)!r} is {kinds[0]} and b={str(b)!r} is {kinds[1]}; give two of one kind"
        )
    if markdown is not None:
        output_file(markdown, "markdown")
    if kinds[0] == CHOICE:
        refuse_given(context, ("spec", "min_quantized_size", "out"), "is for runs, not for choices")
        tables, facts, record = _choices(a, b, states, top, as_json)
    else:
        if states is not None:
            raise BadValueError(f"states={str(states)!r} is for choices, not for runs")
        folder = out / "compare"
        compared, facts = _runs(a, b, spec, min_quantized_size, folder, as_json)
        output_folder(folder)
        write_frame(folder / "moments.parquet", compared.moments)
        write_frame(folder / "errors.parquet", compared.errors)
        tables, record = _tables(compared, top), _record(compared)
    if markdown is not None:
        write_markdown(markdown, f"A: {a}, B: {b}", facts, tables)
    if as_json:
        print_json(record)
        return
    print_lines(f"A: {a}", f"B: {b}")
    for table in tables:
        table.show()
    if kinds[0] == RUN:
        print_lines(f"frames: {out / 'compare'}")
    if markdown is not None:
        print_lines(f"markdown: {markdown}")


def _kind(path: Path) -> str:
    return CHOICE if path.suffix in (".json", ".yaml", ".yml") else RUN


def _load(path: Path) -> CapturedStates:
    """The states of a run folder, of a capture, or of a checkpoint."""
    from qmaps import capture

    inside = path / "states"
    return capture.load(inside if inside.is_dir() else path)


def _runs(
    a: Path, b: Path, spec: list[str] | None, min_size: int, folder: Path, quiet: bool
) -> tuple[RunsCompared, list[str]]:
    from qmaps.analyze import compare as comparisons
    from qmaps.analyze.compare.runs import PAIRS

    loaded = [_load(path) for path in (a, b)]
    with progress(quiet=quiet) as advance:
        compared = comparisons.runs(
            *loaded,
            pairs=spec or PAIRS,
            min_quantized_size=min_size,
            progress=advance.stage("compare states", folder),
        )
    facts = [
        f"{run}: {states.source}, step {states.step}, {len(states.parameters())} parameters"
        for run, states in zip("AB", loaded, strict=True)
    ]
    return compared, facts


def _tables(compared: RunsCompared, top: int) -> list[Table]:
    """Both runs over all shared parameters, those that differ most, and those of one run."""
    overall = compared.moments[compared.moments["parameter"] == ""].sort_values(
        "state", kind="stable"
    )
    count = len(compared.shared)
    tables = [
        Table(
            f"moments over the {count} parameters that both have: log10 of magnitudes",
            ["moment", "of", "median", "1 %", "99 %", "spread", "zero", "in rows", "in columns"],
            [[row["state"], row["run"], *_magnitudes(row)] for row in records(overall)],
        ),
        Table(
            "error of the Adam update, over the same parameters",
            ["pair", "bits", "mean abs A", "mean abs B", "B / A", "zeroed A", "zeroed B"],
            [_error_cells(*rows) for rows in _beside(compared.errors, ["", "quantizer"])],
        ),
    ]
    rows = _beside(compared.moments[compared.moments["state"] == "exp_avg_sq"], ["parameter"])
    rows.sort(
        key=lambda rows_of_parameter: (
            -abs(rows_of_parameter[1]["median"] - rows_of_parameter[0]["median"])
        )
    )
    tables.append(
        Table(
            f"second moments that differ most, {min(top, count)} of {count} parameters",
            ["parameter", "shape", "median A", "median B", "spread A", "spread B"],
            [
                [
                    row_a["parameter"],
                    row_a["shape"] if row_a["shape"] == row_b["shape"]
                    else f"{row_a['shape']}, {row_b['shape']}",
                    *(f"{row['median']:.2f}" for row in (row_a, row_b)),
                    *(f"{row['spread']:.2f}" for row in (row_a, row_b)),
                ]
                for row_a, row_b in rows[:top]
            ],
        )
    )  # fmt: skip
    for run, names in compared.only.items():
        if names:
            shown = [[name] for name in names[:top]]
            title = f"only in {run}, {len(shown)} of {len(names)} parameters"
            tables.append(Table(title, ["parameter"], shown))
    return tables


def _beside(frame: pd.DataFrame, keys: list[str]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The rows of A and B with the same key."""
    if keys[0] == "":
        frame, keys = frame[frame["parameter"] == ""], keys[1:]
    else:
        frame = frame[frame["parameter"] != ""]
    first, second = (
        {row[keys[0]]: row for row in records(frame[frame["run"] == run])} for run in "AB"
    )
    return [(row, second[key]) for key, row in first.items() if key in second]


def _magnitudes(row: Mapping[str, Any]) -> list[str]:
    numbers = [f"{row[name]:.2f}" for name in ("median", "low", "high", "spread")]
    return numbers + [f"{row[name]:.1%}" for name in ("zeros", "in_rows", "in_cols")]


def _error_cells(row_a: Mapping[str, Any], row_b: Mapping[str, Any]) -> list[str]:
    errors = [row["mean_abs_error"] for row in (row_a, row_b)]
    return [
        label(row_a),
        f"{row_a['bits_per_element']:.2f}",
        *(f"{error:.3g}" for error in errors),
        f"{errors[1] / errors[0]:.2f}" if errors[0] else "",
        *(f"{row['zeroed_share']:.2%}" for row in (row_a, row_b)),
    ]


def _record(compared: RunsCompared) -> dict[str, Any]:
    return {
        "shared": compared.shared,
        "only_a": compared.only["A"],
        "only_b": compared.only["B"],
        "moments": records(compared.moments),
        "errors": records(compared.errors),
    }


def _choices(
    a: Path, b: Path, states: Path | None, top: int, quiet: bool
) -> tuple[list[Table], list[str], dict[str, Any]]:
    from qmaps.analyze import compare as comparisons
    from qmaps.optim import Choice

    choice_a, choice_b = (Choice.load(path) for path in (a, b))
    loaded = None if states is None else _load(states)
    with progress(quiet=quiet) as advance:
        compared = comparisons.choices(
            choice_a, choice_b, loaded, progress=advance.stage("replay states")
        )
    facts = [] if loaded is None else [f"states of {loaded.source}", f"step {loaded.step}"]
    return (
        _choice_tables(compared, top),
        facts,
        {"parameters": records(compared.parameters), "choices": records(compared.summary)},
    )


def _choice_tables(compared: ChoicesCompared, top: int) -> list[Table]:
    frame = compared.parameters
    what = "patterns" if compared.summary.empty else "parameters"
    rows = frame[frame["differs"]]
    shown = rows.head(top).to_dict("records")
    title = f"{len(rows)} of {len(frame)} {what} differ"
    if len(rows) > len(shown):
        title += f", the first {len(shown)}"
    tables = [
        Table(
            title,
            ["parameter", "A", "B", "bits A", "bits B"],
            [
                [row["parameter"], row["A"], row["B"],
                 *("" if row[bits] != row[bits] else f"{row[bits]:.2f}"
                   for bits in ("bits_A", "bits_B"))]
                for row in shown
            ],
        )
    ]  # fmt: skip
    if not compared.summary.empty:
        kinds = " and ".join(compared.summary["gradients"].unique())
        tables.append(
            Table(
                f"replay of {kinds} gradients; predicted loss in nats, as in qmaps recommend",
                ["choice", "bits", "bytes", "step cost", "loss", "verdict", "about"],
                [
                    [
                        row["choice"],
                        f"{row['bits_per_element']:.2f}",
                        f"{row['nbytes']:,}",
                        f"{row['step_cost']:.2g}",
                        f"{row['loss']:.2g}",
                        row["verdict"],
                        row["reason"],
                    ]
                    for row in compared.summary.to_dict("records")
                ],
            )
        )
    return tables
