"""The results of ``python -m reproduction.speedup`` as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from qmaps.errors import BadValueError
from qmaps.storage.files import output_folder, replacing, write_json
from reproduction.report_file import write_report
from reproduction.speedup.hardware import Hardware
from reproduction.speedup.job import Job

if TYPE_CHECKING:
    import pandas as pd


def read(path: Path) -> tuple[Hardware, Job | None]:
    """Hardware, and the job if there is one, from a JSON file.

    Raises:
        BadValueError, BadTypeError: it is no such file.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadValueError(f"hardware={str(path)!r} cannot be read as JSON ({error})") from None
    if not isinstance(data, dict) or "hardware" not in data:
        raise BadValueError(
            f"hardware={str(path)!r} must have the key 'hardware' and may have the key 'job'"
        )
    if extra := set(data) - {"hardware", "job"}:
        raise BadValueError(
            f"hardware={str(path)!r} has the key {sorted(extra)[0]!r}; allowed are hardware, job"
        )
    job = Job.from_json(data["job"]) if "job" in data else None
    return Hardware.from_json(data["hardware"]), job


def write(
    out: Path,
    command: str,
    table: pd.DataFrame,
    curves: pd.DataFrame,
    hardware: Hardware,
    job: Job,
) -> dict[str, Path]:
    """Write tables, curves, and the inputs of the curves.

    Args:
        out: the folder, created if need be.
        command: the command line for the tables' file.
        table: the frame of `reproduction.speedup.tables`.
        curves: the frame of `reproduction.speedup.curves`.
        hardware: the hardware of the curves.
        job: the job of the curves.

    Returns:
        The paths of the files: "tables" (Markdown), "curves" (CSV) and "hardware" (JSON).

    Raises:
        OutputError: the folder or a file cannot be written.
    """
    output_folder(out)
    paths = {
        "tables": out / "tables.md",
        "curves": out / "curves.csv",
        "hardware": out / "hardware.json",
    }
    write_report(paths["tables"], markdown(table, hardware, command))
    with replacing(paths["curves"]) as temporary:
        curves.to_csv(temporary, index=False, float_format="%.6g")
    job_values = {name: getattr(job, name) for name in job.__dataclass_fields__}
    write_json(paths["hardware"], {"hardware": hardware.to_json(), "job": job_values})
    return paths


NOTES = """\
Off by more than 2 % and by more than half a unit of the last digit stands in bold.

- Tables 6, 7 and the 96-GPU part of 1 start from the single passes that Table 6 prints. Its
  12288-sample row carries question marks in the paper; its 32-bit full pass there is 31 x 250 ms,
  without the 1.3 ms that the other rows take off.
- "6 from 5" makes those single passes from Table 5: 31 messages at 6 GB/s with the printed
  latency, and 9 local messages at 5 GB/s. It returns all of them to 1.5 %, but for one to 3 %. For
  the sub-batch of 2048 it needs the latencies of 1024 (0.3 and 0.04 ms in place of the printed 0.7
  and 0.07), for 12288 in 8 bits 0.6 ms in place of 0.06: with the printed ones Table 6 does not
  follow from Table 5.
- 8-bit messages are an eighth of 32-bit ones in Table 5, where a quarter is due. What the paper
  predicts for 8 bits is what this model predicts for 4 (curves.csv).
- Table 3 is what its sizes take at 5 GB/s; the paper measured, and says that small messages are
  slower and large ones faster. Gradients of convolutions take 8 messages, all else 4. In 8 bits
  the model sends a quarter of the bytes; the printed times hold compression, too.
- Table 4's layers add up to 94.5 ms. Its total of 104.1 ms is the estimate for the whole net,
  which the model uses as the paper does.
- A.1.3 compares with a measured speed-up, of which the paper says that the model is "within 1 %".
"""


SIZES_KB = (1, 16, 256, 4096)
"""Messages with times on a page."""


def markdown(table: pd.DataFrame, hardware: Hardware, command: str) -> str:
    """The tables as a page in Markdown.

    Args:
        table: the frame of `reproduction.speedup.tables`.
        hardware: the hardware of the curves.
        command: the command line at the top.
    """
    lines = ["# The speed-up model beside the paper", "", f"`{command}`", "", NOTES]
    lines += [*_about(hardware), ""]
    for name, part in table.groupby("table", sort=True):
        lines += [
            f"## Table {name}" if str(name)[0].isdigit() else f"## Section {name}",
            "",
            "| what | quantity | messages | paper | model | off |",
            "|---|---|---|---:|---:|---:|",
        ]
        for row in part.to_dict("records"):
            off = f"{row['off_percent']:+.1f} %"
            lines.append(
                f"| {row['row']} | {row['quantity']} | {row['messages']} | {row['printed']} "
                f"| {row['model']:.4g} | {off if row['agrees'] else f'**{off}**'} |"
            )
        lines.append("")
    return "\n".join(lines)


def _about(hardware: Hardware) -> list[str]:
    """Describe the inputs of the curves for readers."""
    lines = [
        "## Hardware of the curves",
        "",
        f"{hardware.name}, {hardware.gpus} devices in all. curves.csv and speedup.png are its "
        "predictions; hardware.json has all of its numbers.",
        "",
        "| a message | GB/s | " + " | ".join(f"{size:,} kB, ms" for size in SIZES_KB) + " |",
        "|---|---:|" + "---:|" * len(SIZES_KB),
    ]
    for name, link in (("in a node", hardware.local), ("between nodes", hardware.network)):
        times = " | ".join(f"{link.ms(1000 * size):.3g}" for size in SIZES_KB)
        lines.append(f"| {name} | {link.gb_per_s:.3g} | {times} |")
    if hardware.compress_ns:
        lines += ["", "| quantizer | ns to code a number | to decode |", "|---|---:|---:|"]
        lines += [
            f"| {spec} | {ns:.3g} | {hardware.decompress_ns.get(spec, 0):.3g} |"
            for spec, ns in hardware.compress_ns.items()
        ]
    return lines
