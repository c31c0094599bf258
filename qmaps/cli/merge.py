"""``qmaps merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qmaps.cli.options import AsJson, Out
from qmaps.cli.output import print_json, print_lines
from qmaps.storage.files import records


def merge(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders that qmaps sweep --shard wrote to.")
    ],
    out: Out = Path("runs/sweep"),
    as_json: AsJson = False,
) -> None:
    """Put the shards of a sweep together; the rows go to OUT/sweep/sweep.parquet.

    Examples:

        qmaps merge runs/mine --out runs/mine

        qmaps merge runs/shard-1 runs/shard-2 runs/shard-3 --out runs/mine
    """
    from qmaps import sweep as sweeps

    frame = sweeps.merge(folders, out=out / "sweep")
    if as_json:
        print_json(records(frame))
        return
    print_lines(f"{frame['parameter'].nunique()} parameters, {len(frame)} rows")
    print_lines(f"rows: {out / 'sweep' / 'sweep.parquet'}")
