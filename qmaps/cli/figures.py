"""Pictures of runs: ``qmaps figures``, ``plot`` and ``report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qmaps.cli import options
from qmaps.cli.options import AsJson
from qmaps.cli.output import announce, print_json, print_result, print_rows, progress
from qmaps.errors import BadValueError


def figures(
    states: Annotated[
        Path | None, typer.Argument(help="Captured states to analyze; leave out to draw again.")
    ] = None,
    spec: Annotated[
        list[str] | None,
        typer.Option(
            help="A pair of quantizers such as 'B128/DE@4s + rank1/linear@4u', or a preset such "
            "as 4bit, for the figures to show beside those of the papers; may be repeated."
        ),
    ] = None,
    load: options.Load = None,
    codebook: options.CodebookFiles = None,
    names: options.CheckpointNames = None,
    first: options.First = None,
    second: options.Second = None,
    out: options.Out = Path("runs/sweep"),
    min_quantized_size: options.MinSize = 4096,
    workers: options.Workers = None,
    as_json: AsJson = False,
) -> None:
    """Analyze captured states and draw every figure to OUT/figures.

    Examples:

        qmaps figures states --out runs/mine

        qmaps figures states --spec 4bit --spec "B64/nf4@4s + B128/DE-0@4u"

        qmaps figures optimizer.pt --names names.txt --workers 4

        qmaps figures --out runs/lab
    """
    from qmaps.lab import draw

    if names is not None and states is None:
        raise BadValueError(f"names={str(names)!r} needs a checkpoint")
    if workers is not None and states is None:
        raise BadValueError(f"workers={workers} needs states, which they analyze")
    if spec and states is None:
        raise BadValueError(f"spec={spec[0]!r} needs states to quantize")
    if states is not None:
        announce()
    books = options.own_codebooks(load, codebook)
    with progress(quiet=as_json) as advance:
        if states is not None:
            from qmaps import capture
            from qmaps.lab import analyze_states

            analyze_states(
                options.as_adam(capture.load(states, names=names), first, second),
                out,
                pairs=spec or (),
                codebooks=books,
                min_quantized_size=min_quantized_size,
                progress=advance.stage("analyze states"),
                workers=workers,
            )
        drawn = draw(out, progress=advance.stage("draw figures"))
    print_result(as_json, [str(path) for path in drawn], *drawn)


def plot(
    figure: Annotated[
        str | None,
        typer.Argument(
            help="Name of the figure, or the CSV file of a monitor; leave out to list all."
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="Run folder with the figure's frame, such as runs/lab.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File that ends in .png, .svg or .pdf; by default the figure's name and .png."
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--list", help="List the figures.")] = False,
    as_json: AsJson = False,
) -> None:
    """Draw one figure of a run folder, or the CSV file of a monitor, to a file.

    `qmaps figures` makes run folders of captured states, and draws all figures.

    Examples:

        qmaps plot --list

        qmaps plot pareto_exp_avg --run runs/lab --out pareto.pdf

        qmaps plot monitor.csv
    """
    from qmaps import figures
    from qmaps.figures.declare import kind_of
    from qmaps.lab import pictures as named
    from qmaps.storage.files import output_file

    if figure is None or every:
        _list(as_json)
        return
    is_file = Path(figure).suffix == named.CSV
    target = Path(f"{Path(figure).stem if is_file else figure}.png") if out is None else out
    if is_file:
        if run is not None:
            raise BadValueError(f"run={str(run)!r} cannot be combined with a file to draw")
        kind_of(target, "out")
        drawn = named.of_file(figure)
    else:
        plotted = named.plot(figure)
        if run is None:
            raise BadValueError(f"figure={figure!r} needs --run, a run folder with its frame")
        kind_of(target, "out")
        drawn = named.of_run(plotted, run)
    figures.save(drawn, output_file(target))
    print_result(as_json, {"figure": figure, "out": str(target)}, target)


def _list(as_json: bool) -> None:
    from qmaps.lab.pictures import plots

    listed = [{"name": p.name, "title": p.title, "frame": p.file or None} for p in plots().values()]
    if as_json:
        print_json(listed)
        return
    print_rows(
        "figures, and the file of a run folder with the frame of each",
        {"figure": "{name}", "frame": "{frame}", "about": "{title}"},
        [{**row, "frame": row["frame"] or "-"} for row in listed],
    )


def report(
    run: Annotated[Path, typer.Argument(help="Run folder with figures or a recommendation.")],
    as_json: AsJson = False,
) -> None:
    """Write RUN/report.html, one page that needs no other file.

    Example:

        qmaps report runs/lab
    """
    from qmaps.lab import report as reports

    page = reports.write(run)
    print_result(as_json, {"report": str(page)}, f"report: {page.resolve()}")
