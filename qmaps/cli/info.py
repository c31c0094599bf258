"""What there is: ``qmaps maps``, ``doctor`` and ``verify``."""

from __future__ import annotations

from typing import Annotated

import typer

from qmaps.cli import catalogue
from qmaps.cli.options import AsJson
from qmaps.cli.output import announce, print_json, print_result, print_rows, print_text


def maps(
    spec: Annotated[
        str | None, typer.Argument(help="Show the codebook of this map, such as DE@4s.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List maps and normalizers, or show the codebook of one map.

    Examples:

        qmaps maps

        qmaps maps DE@4s
    """
    if spec is not None:
        announce()
        from qmaps.algebra.spec import parse_map

        map_ = parse_map(spec)
        values = map_.codebook().tolist()
        if as_json:
            print_json({"map": map_.spec, "values": values})
        else:
            print_rows(
                f"{map_.spec}: {len(values)} values",
                {"code": "{code}", "value": "{value!s}"},
                [{"code": c, "value": value} for c, value in enumerate(map_.codebook().numpy())],
            )
        return
    listed = catalogue.facts()
    if listed is None:
        announce()
        listed = catalogue.listing()
    rows, normalizers = listed["maps"], listed["normalizers"]
    if as_json:
        print_json({"maps": rows, "normalizers": normalizers})
        return
    print_rows(
        "maps",
        {"map": "{map}", "signed": "{widths[s]}", "unsigned": "{widths[u]}", "about": "{about}"},
        [{**row, "widths": {"s": "-", "u": "-", **row["widths"]}} for row in rows],
    )
    print_text(
        f"normalizers: {', '.join(normalizers)}; each but logB<n>, powB<n>r<n> and unscaled also "
        f"with &, and with one of the formats of scales: {', '.join(listed['suffixes'])}",
        f"transforms before a map: {', '.join(listed['transforms'])}, such as sqrt:linear0@8u",
    )


def doctor(
    seconds: Annotated[
        float, typer.Option(min=0, help="Time for measurements, about; 0 measures nothing.")
    ] = 4.0,
    as_json: AsJson = False,
) -> None:
    """Say what this installation has, what is wrong with it, and what a step costs here.

    It prints versions, back ends and why others do not run, the processor, and the time of a step
    of AdamW in 32, 8 and 4 bits. For every problem it names the command that repairs it; the exit
    code is 1 if there is one. Paste the output into reports of problems.

    Examples:

        qmaps doctor

        qmaps doctor --seconds 0 --json
    """
    from dataclasses import asdict

    from qmaps.optim.doctor import doctor as examine

    report = examine(seconds=seconds)
    print_result(as_json, asdict(report), *str(report).split("\n"))
    if report.problems:
        raise typer.Exit(1)


def verify(
    seconds: Annotated[float, typer.Option(min=1, help="Time for all of it, about.")] = 150.0,
    as_json: AsJson = False,
) -> None:
    """Compare the kernels on this machine's GPU with the reference, bit for bit, and time steps.

    It prints Markdown for a report. Without a GPU the kernels run in Triton's interpreter, or else
    the native engine of the CPU is checked. The exit code is 1 if a bit differs.

    Examples:

        qmaps verify

        qmaps verify --seconds 60 --json
    """
    from dataclasses import asdict

    from qmaps.optim.verify import verify as examine

    report = examine(seconds=seconds)
    print_result(as_json, asdict(report), *str(report).split("\n"))
    if not report.equal:
        raise typer.Exit(1)
