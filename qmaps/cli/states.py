"""Optimizer states: ``qmaps capture``, ``convert`` and ``lint``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qmaps.cli import options
from qmaps.cli.output import (
    print_json,
    print_lines,
    print_result,
    print_rows,
    print_text,
    progress,
)
from qmaps.errors import BadValueError
from qmaps.storage.units import size

if TYPE_CHECKING:
    from qmaps.capture.conversion.report import Report, StateRow

ERROR_COLUMNS = {"max abs": "{max_abs_error:.3g}", "mean rel": "{mean_rel_error:.3g}"}
CHANGE_COLUMNS = {
    **{name: f"{{{name}}}" for name in ("state", "was", "became")},
    "count": "{count}",
    "how": "{how}",
    **ERROR_COLUMNS,
}
STATE_COLUMNS = {
    "parameter": "{parameter}",
    "state": "{state}",
    "how": "{how}",
    **ERROR_COLUMNS,
    "zeros": "{zeros}",
    "raised": "{raised}",
}


def capture(
    workload: Annotated[str | None, typer.Argument(help="Train this workload to capture.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the captured states.")] = Path("states"),
    checkpoint: options.Checkpoint = None,
    names: options.CheckpointNames = None,
    betas: options.Betas = None,
    eps: options.Eps = None,
    every: Annotated[int, typer.Option(min=1, help="Steps between snapshots.")] = 50,
    parameters: options.Parameters = None,
    gradients: Annotated[
        int | None,
        typer.Option(min=2, help="Record the gradients of this many steps after each snapshot."),
    ] = None,
    seed: options.Seed = 0,
    steps: options.Steps = None,
    as_json: options.AsJson = False,
) -> None:
    """Capture optimizer states: of a workload trained with AdamW, or of a checkpoint.

    Examples:

        qmaps capture stdlib-lm --out states --every 50

        qmaps capture --checkpoint checkpoint-500 --out states

        qmaps capture --checkpoint opt_state.msgpack --betas 0.9,0.95 --eps 1e-8 --out states
    """
    from qmaps import capture as captures
    from qmaps.capture import StateRecorder
    from qmaps.capture.recorder import write
    from qmaps.lab import workloads
    from qmaps.storage.files import output_folder

    if (workload is None) == (checkpoint is None):
        raise BadValueError("give either a workload or --checkpoint, not both")
    naming = note = ""
    if checkpoint is not None:
        if gradients is not None:
            raise BadValueError(
                f"gradients={gradients} needs a workload to train; a checkpoint has no gradients"
            )
        loaded = captures.load(checkpoint, names=names, betas=options.pair_of(betas), eps=eps)
        write(loaded, out)
        naming, note = loaded.naming, loaded.note
    else:
        if names is not None:
            raise BadValueError(f"names={str(names)!r} needs --checkpoint")
        for option, value in (("betas", betas), ("eps", eps)):
            if value is not None:
                raise BadValueError(f"{option}={value} needs --checkpoint")
        work = workloads.get(workload or "")
        contender = options.as_contender("32bit")
        if every > (total := work.steps if steps is None else steps):
            raise BadValueError(f"every={every} would record none of the {total} steps")
        output_folder(out)
        with progress(quiet=as_json) as advance:
            workloads.train(
                work,
                contender.optimizer,
                out=out / "train",
                label=contender.label,
                seed=seed,
                steps=steps,
                hooks=[
                    lambda optimizer, _: StateRecorder(
                        optimizer, out, every=every, parameters=parameters, gradients=gradients
                    )
                ],
                progress=lambda step, total, loss: advance(
                    f"train {work.name}", step, total, f"loss {loss:.3f}"
                ),
            )
    states = captures.load(out)
    summary = {
        "out": str(out),
        "steps": states.steps,
        "optimizer": states.optimizer,
        "parameters": len(states.parameters()),
        "elements": states.numel,
        "naming": naming,
    }
    lines = [f"{states} in {out}, captured at steps {', '.join(map(str, states.steps))}"]
    lines += [f"parameter names: {naming}"] * bool(naming)
    lines += [note] * bool(note)
    print_result(as_json, summary, *lines)


def convert(
    checkpoint: Annotated[Path, typer.Argument(help="An optimizer checkpoint, a file or folder.")],
    out: Annotated[Path, typer.Argument(help="The file or folder to write.")],
    to: Annotated[str, typer.Option(help="Format, such as torch, bitsandbytes, torchao or qmaps.")],
    states: Annotated[
        str | None,
        typer.Option(
            help="32bit, 8bit, 4bit or fp8, as far as the target has them; for qmaps also a preset "
            "or a pair such as 'B128/DE@4s + 32-bit'. By default codes are kept if the target can "
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
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="The optimizer family, such as lion or sgd, if a checkpoint of bitsandbytes does "
            "not say which, or if options in groups are those of other rules."
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
    names: options.CheckpointNames = None,
    betas: options.Betas = None,
    eps: options.Eps = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")] = False,
    top: Annotated[
        int,
        typer.Option(min=0, help="States to print one by one, largest errors first."),
    ] = 0,
    as_json: options.AsJson = False,
) -> None:
    """Convert an optimizer checkpoint between torch, bitsandbytes, torchao and qmaps.

    Codes and codebooks are kept exactly if the target can hold them; otherwise values are
    decoded and encoded again. The output says what changed, how large the result is, and how to
    load it; --json has the error of each state.

    Examples:

        qmaps convert optimizer.pt converted.pt --to qmaps

        qmaps convert optimizer.pt converted.pt --to bitsandbytes --json

        qmaps convert in.pt out.pt --to qmaps --states "B128/DE@4s + 32-bit" --zeros leave

        qmaps convert global_step500 optimizer.pt --to qmaps --states 4bit

        qmaps convert step-500 step-500-4bit --to qmaps --states 4bit --distributed optimizer

        qmaps convert optimizer.pt global_step900 --to torch --like global_step500
    """
    from qmaps.capture.conversion import convert_file
    from qmaps.capture.readers.base import TRANSPOSED

    before = _bytes_in(checkpoint)  # which may be the output, too
    reports = convert_file(
        checkpoint,
        out,
        to=to,
        states=states,
        zeros=zeros,
        optimizer=optimizer,
        overwrite=overwrite,
        distributed=distributed,
        like=like,
        names=names,
        betas=options.pair_of(betas),
        eps=eps,
    )
    if as_json:
        print_json([report.as_dict() for report in reports])
        return
    for report in reports:
        _print_report(report, top)
    print_lines("", f"wrote {out}: {size(_bytes_in(out))}; {checkpoint}: {size(before)}")
    if like is not None:
        print_text(f"Resume the training from {out} in place of {like}.")
    elif not any(TRANSPOSED in report.notes for report in reports):
        print_lines("To load it:")
        for report in reports:
            print_lines("", *_loading(report, out, distributed))


def _print_report(report: Report, top: int) -> None:
    """Print changes of alike states in one row, then states one by one."""
    same = "all of them bit for bit" if report.lossless else "the largest error of each kind"
    print_rows(
        f"{report.source} to {report.target}: {len(report.states)} states, {same}",
        CHANGE_COLUMNS,
        _changes(report.states),
    )
    raised = sum(row.raised for row in report.states)
    if zeros := sum(row.zeros for row in report.states):
        print_text(
            f"{zeros:,} elements of v decode to 0 where m does not; {raised:,} of them were raised."
        )
    for note in report.notes:
        print_text(f"note: {note}")
    if top:
        rows = sorted(report.states, key=lambda row: row.max_abs_error, reverse=True)
        print_lines("")
        print_rows("States one by one", STATE_COLUMNS, map(asdict, rows[:top]))


def _changes(states: Iterable[StateRow]) -> Iterator[dict[str, Any]]:
    """A row for states of equal name, quantizers and kind of change, largest errors first."""
    kinds: dict[tuple[str, ...], list[StateRow]] = {}
    for row in states:
        kinds.setdefault((row.state, row.was, row.became, row.how), []).append(row)
    for rows in sorted(kinds.values(), key=lambda kind: -max(row.max_abs_error for row in kind)):
        numel = [row.elements * (not math.isnan(row.mean_rel_error)) for row in rows]
        weighted = [n * row.mean_rel_error for n, row in zip(numel, rows, strict=True) if n]
        yield {
            **asdict(rows[0]),
            "count": len(rows),
            "max_abs_error": max(row.max_abs_error for row in rows),
            "mean_rel_error": sum(weighted) / sum(numel) if sum(numel) else math.nan,
        }


def _loading(report: Report, out: Path, distributed: str | None) -> Iterator[str]:
    """Lines of code that load what was written for an optimizer."""
    from qmaps.capture.conversion import FORMATS
    from qmaps.capture.conversion.report import IN_32_BITS

    layout = FORMATS[report.target]
    specs: dict[str, str | None] = {}
    for row in report.states:  # small parameters stay in 32 bits under any quantizer
        specs[row.state] = specs.get(row.state) or (
            None if row.became == IN_32_BITS else row.became
        )
    known = bool(report.rule) and (layout.rules is None or report.rule in layout.rules)
    code = layout.optimizer(report.rule, specs) if layout.package and known else "..."
    imported = [f"from {layout.package} import {code.partition('(')[0]}"] * (code != "...")
    made = ("# Give lr and the other options as before.", *f"optimizer = {code}".split("\n"))
    if distributed is None:
        place = "".join(f"[{json.dumps(key)}]" for key in report.place)
        saved = f"torch.load({json.dumps(str(out))}, weights_only=True){place}"
        yield from ("import torch", *imported, "", *made, f"optimizer.load_state_dict({saved})")
        return
    key, folder = json.dumps(distributed), json.dumps(str(out))
    yield from (
        "import torch.distributed.checkpoint as dcp",
        "from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner",
        "from torch.distributed.checkpoint.state_dict import (",
        "    get_optimizer_state_dict,",
        "    set_optimizer_state_dict,",
        ")",
        *imported,
        "",
        *made,
        f"state = {{{key}: get_optimizer_state_dict(model, optimizer)}}",
        "planner = DefaultLoadPlanner(allow_partial_load=True)",
        f"dcp.load(state, checkpoint_id={folder}, planner=planner)",
        f"set_optimizer_state_dict(model, optimizer, state[{key}])",
    )


def _bytes_in(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    if path.is_dir():
        return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    return path.stat().st_size if path.exists() else 0


def lint(
    states: options.States,
    step: options.Step = None,
    names: options.CheckpointNames = None,
    load: options.Load = None,
    codebook: options.CodebookFiles = None,
    as_json: options.AsJson = False,
) -> None:
    """Find problems of saved optimizer states; the exit code is 1 if there is an error.

    Errors are second moments that were lost (a checkpoint in float16), NaN and infinity, negative
    second moments, impossible step counters, and codes or scales that do not fit their quantizer.
    Warnings are second moments in bfloat16 that cannot decay, weights in bfloat16 that weight decay
    cannot change, rows without gradients, quantizers that make second moments 0 or move zeros, and
    maps that are not installed.

    Examples:

        qmaps lint checkpoint-500/optimizer.pt

        qmaps lint optimizer.pt --names names.txt --json
    """
    from qmaps.capture.lint import lint_file

    options.own_codebooks(load, codebook)
    findings = lint_file(states, step=step, names=names)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    elif not findings:
        print_lines(f"{states}: no problems found")
    else:
        rows = [
            {name: value or "all" for name, value in asdict(finding).items()}
            for finding in findings
        ]
        columns = {name: f"{{{name}}}" for name in ("level", "parameter", "state")}
        columns["about"] = "{message}"
        print_rows(f"{states}: {len(rows)} finding{'s' * (len(rows) != 1)}", columns, rows)
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)
