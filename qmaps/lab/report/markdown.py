"""The claims and the training table of a run as Markdown, to be kept beside code."""

from __future__ import annotations

import os
from pathlib import Path

from qmaps.analyze._states import MIN_SIZE
from qmaps.errors import CaptureError
from qmaps.lab.report.claims import claims
from qmaps.lab.report.page import read_about, read_frame
from qmaps.storage.files import markdown_table, output_folder, write_text


def write_markdown(run: str | os.PathLike[str], path: str | os.PathLike[str]) -> Path:
    """Write the results of a run on the papers' claims to `path`.

    Args:
        run: a folder of `qmaps.lab.run`, or one with ``frames/update_error.parquet``.
        path: the file; an existing one is replaced.

    Returns:
        The file.

    Raises:
        CaptureError: the folder has no such frame.
        OutputError: `path` cannot be written.
    """
    folder, target = Path(run), Path(path)
    errors = read_frame(folder / "frames" / "update_error.parquet")
    if errors is None:
        raise CaptureError(f"run={str(folder)!r} must hold frames/update_error.parquet")
    losses = read_frame(folder / "frames" / "losses.parquet")
    about = read_about(folder)
    lines = ["# Beside the papers", ""]
    if about:
        versions = about["versions"]
        what = (
            f"{about['workload']}, {about['parameters']:,} parameters, {about['steps']} steps, "
            f"seed {about['seed']}"
            if "workload" in about
            else f"{about['checkpoint']}, {about['parameters']:,} parameters"
        )
        lines += [
            f"{what}, states of step {about['captured_step']}; "
            f"`{about['command']}`; qmaps {versions['qmaps']}, torch {versions['torch']}, "
            f"{about['machine']}.",
            "",
        ]
    min_size = about.get("min_quantized_size", MIN_SIZE)
    lines += [
        "Errors of the Adam update u = m / (sqrt(v) + eps) over all elements of all tensors with "
        f"more than {min_size} elements; relative: |Δu| / |u| over elements with u ≠ 0. The "
        "papers' linear is `linear0`.",
        "",
    ]
    for claim in claims(errors, read_frame(folder / "sweep" / "sweep.parquet")):
        lines += [f"## {claim.text}", "", f"**{claim.verdict}** ({claim.source}). "]
        lines[-1] += claim.detail
        lines.append("")
        if claim.table:
            lines += [*markdown_table(claim.table, zip(*claim.table.values(), strict=True)), ""]
    if losses is not None:
        rows = [
            [row["run"], f"{row['mean']:.4f}", f"{row['difference']:+.4f}",
             f"{row['state_mib']:.2f}"]
            for row in losses.to_dict("records")
        ]  # fmt: skip
        header = ["optimizer", "final validation loss", "minus the first", "state (MiB)"]
        lines += ["## Training with quantized states", "", *markdown_table(header, rows), ""]
    output_folder(target.parent, "markdown")
    write_text(target, "\n".join(lines))
    return target
