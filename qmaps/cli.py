"""The command line: the one place that turns names into objects."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

try:
    import typer
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.table import Table
except ImportError as error:  # pragma: no cover - installed without the extra
    raise SystemExit(
        f'the qmaps command needs {error.name}; install it with pip install "qmaps[lab]"'
    ) from None

from qmaps.errors import BadValueError, QmapsError

if TYPE_CHECKING:
    from qmaps.convert.report import UpdateRow
    from qmaps.lab import Contender
    from qmaps.maps.base import Map
    from qmaps.maps.codebook import Codebook

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Which quantizer is safe for your optimizer's states?\n\n"
    "Start with `qmaps lab`, which runs everything once on real data.",
)
errors = Console(stderr=True)

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

# ClickException: newer versions of typer carry click inside, older ones depend on it.
CommandLineError: Any = typer.BadParameter.__mro__[2]

Out = Annotated[Path, typer.Option(help="Run folder; everything of the run is kept in it.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of weights and batches.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Training steps; the workload's default.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts, and nothing else.")]
Workload = Annotated[str, typer.Argument(help="stdlib-lm, stdlib-lm-tiny, digits or minilm.")]
States = Annotated[
    Path,
    typer.Argument(help="Captured states (folder or .safetensors), or an optimizer checkpoint."),
]
StableEmbedding = Annotated[
    bool,
    typer.Option(
        "--stable-embedding", help="Train the language models with qmaps.nn.StableEmbedding."
    ),
]
MinSize = Annotated[
    int, typer.Option(min=0, help="Leave out tensors of at most this many elements.")
]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; bad input is one line on stderr and exit code 2."""
    try:
        code = app(args=None if arguments is None else list(arguments), standalone_mode=False)
    except CommandLineError as error:
        message = " ".join(error.format_message().split())
        if message:  # empty where the help was shown instead
            _print_error(message)
        raise SystemExit(error.exit_code) from None
    except QmapsError as error:
        _print_error(str(error))
        raise SystemExit(2) from None
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:  # newer versions of typer return it for Ctrl-C
        errors.print("interrupted; the same command goes on from here", markup=False)
    raise SystemExit(code if isinstance(code, int) else 0)


def _print_error(message: str) -> None:
    errors.print(f"error: {message}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def lab(
    workload: Annotated[
        str, typer.Argument(help="stdlib-lm, stdlib-lm-tiny, digits or minilm.")
    ] = ("stdlib-lm"),
    out: Out = Path("runs/lab"),
    seed: Seed = 0,
    steps: Steps = None,
    stable_embedding: StableEmbedding = False,
    as_json: AsJson = False,
) -> None:
    """Run the whole laboratory: train, capture, sweep, draw, train quantized, report.

    Examples:

        qmaps lab

        qmaps lab stdlib-lm-tiny --out runs/tiny
    """
    from qmaps import workloads
    from qmaps.lab import run

    with _progress(quiet=as_json) as advance:
        page = run(
            workloads.get(workload, **_options(stable_embedding)),
            out,
            seed=seed,
            steps=steps,
            command=" ".join(["qmaps", *sys.argv[1:]]),
            progress=advance,
        )
    if as_json:
        _print_json({"report": str(page), "out": str(out)})
    else:
        print(f"report: {page.resolve()}")


@app.command()
def train(
    workload: Workload,
    out: Out = Path("runs/train"),
    optimizer: Annotated[
        list[str] | None,
        typer.Option(
            help="32bit (torch's AdamW), 8bit, 4bit, paper-8bit, paper-4bit, or a pair such as "
            "'B128/DE@4s + rank1/linear@4u'. May be given several times; the first is the one "
            "that others are compared with."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0.")] = 1,
    steps: Steps = None,
    stable_embedding: StableEmbedding = False,
    table: Annotated[
        Path | None, typer.Option(help="Write the comparison as a Markdown table here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a workload with one or several optimizers and compare the final validation loss.

    Examples:

        qmaps train digits --optimizer 32bit --optimizer 4bit

        qmaps train stdlib-lm --optimizer 32bit --optimizer paper-8bit --seeds 3 --table losses.md
    """
    from qmaps import workloads
    from qmaps.lab import compare, summarize_losses

    chosen = [_contender(name) for name in optimizer or ["32bit"]]
    work = workloads.get(workload, **_options(stable_embedding))
    with _progress(quiet=as_json) as advance:
        runs = compare(
            work,
            chosen,
            out=out,
            seeds=range(seeds),
            steps=steps,
            progress=lambda name, step, total, loss: advance(
                f"train {name}", step, total, f"loss {loss:.3f}"
            ),
        )
    frame = summarize_losses(runs)
    records = frame.to_dict("records")
    if table is not None:
        _write_table(table, records, work.name, work.unit, runs[0].steps)
    if as_json:
        _print_json(records)
        return
    _print_table(
        f"final validation loss of {work.name} ({work.unit}), {runs[0].steps} steps",
        ["optimizer", "seeds", "mean", "std", "minus the first", "its std", "state MiB"],
        [_loss_cells(row) for row in records],
    )


@app.command()
def capture(
    workload: Annotated[str | None, typer.Argument(help="Train this workload to capture.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the captured states.")] = Path("states"),
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Read this optimizer checkpoint (torch.save) instead of training."),
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Steps between snapshots.")] = 50,
    parameters: Annotated[
        list[str] | None, typer.Option(help="Parameter names, with wildcards; may be repeated.")
    ] = None,
    seed: Seed = 0,
    steps: Steps = None,
    as_json: AsJson = False,
) -> None:
    """Capture optimizer states: of a workload trained with AdamW, or of a checkpoint.

    Examples:

        qmaps capture stdlib-lm --out states --every 50

        qmaps capture --checkpoint checkpoint-500/optimizer.pt --out states
    """
    from qmaps import capture as captures
    from qmaps import workloads
    from qmaps.capture import StateRecorder

    if (workload is None) == (checkpoint is None):
        raise BadValueError("give either a workload or --checkpoint, and not both")
    if checkpoint is not None:
        captures.convert(checkpoint, out)
    else:
        work = workloads.get(workload or "")
        contender = _contender("32bit")
        with _progress(quiet=as_json) as advance:
            workloads.train(
                work,
                contender.optimizer,
                out=out / "train",
                label=contender.label,
                seed=seed,
                steps=steps,
                hooks=[
                    lambda optimizer, _: StateRecorder(
                        optimizer, out, every=every, parameters=parameters
                    )
                ],
                progress=lambda step, total, loss: advance(
                    f"train {work.name}", step, total, f"loss {loss:.3f}"
                ),
            )
    states = captures.load(out)
    about = {
        "out": str(out),
        "steps": states.steps,
        "optimizer": states.optimizer,
        "parameters": len(states.parameters()),
        "elements": states.numel,
    }
    if as_json:
        _print_json(about)
    else:
        print(f"{states} in {out}, captured at steps {', '.join(map(str, states.steps))}")


@app.command()
def convert(
    checkpoint: Annotated[Path, typer.Argument(help="An optimizer checkpoint (torch.save).")],
    out: Annotated[Path, typer.Argument(help="The file to write.")],
    to: Annotated[str, typer.Option(help="torch, bitsandbytes, torchao or qmaps.")],
    states: Annotated[
        list[str] | None,
        typer.Option(
            help="32bit, 8bit, 4bit or fp8, as the target has them; for qmaps also a preset, or "
            "STATE=SPEC, which may be repeated. Left out: codes stay where the target can hold "
            "them."
        ),
    ] = None,
    zeros: Annotated[
        str,
        typer.Option(
            help="Second moments that decode to 0 under a first moment that does not: raise them "
            "to the smallest value of their format, or leave them."
        ),
    ] = "raise",
    source: Annotated[
        str | None, typer.Option("--from", help="The checkpoint's format; found out if left out.")
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="adam, ademamix, lion, sgd, rmsprop or adagrad, where a checkpoint of "
            "bitsandbytes does not tell."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")] = False,
    top: Annotated[int, typer.Option(min=1, help="Rows to print, largest errors first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Convert an optimizer checkpoint between torch, bitsandbytes, torchao and qmaps.

    Codes and codebooks go over as they are where the target can hold them; otherwise values are
    decoded and encoded anew. The error of each parameter and state is reported.

    Examples:

        qmaps convert optimizer.pt converted.pt --to qmaps

        qmaps convert optimizer.pt converted.pt --to bitsandbytes --json

        qmaps convert in.pt out.pt --to qmaps --states exp_avg=B128/DE@4s --zeros leave
    """
    from qmaps.convert import convert_file

    reports = convert_file(
        checkpoint,
        out,
        to=to,
        states=_wanted_states(states),
        zeros=zeros,
        source=source,
        optimizer=optimizer,
        overwrite=overwrite,
    )
    if as_json:
        _print_json([report.as_dict() for report in reports])
        return
    for report in reports:
        rows = sorted(report.states, key=lambda row: row.max_abs_error, reverse=True)
        _print_table(
            f"{report.source} to {report.target}: {len(rows)} states, "
            + ("all of them bit for bit" if report.lossless else "largest error first"),
            ["parameter", "state", "was", "became", "how", "max abs error", "mean rel error"],
            [
                [
                    row.parameter,
                    row.state,
                    row.was,
                    row.became,
                    row.how,
                    f"{row.max_abs_error:.3g}",
                    f"{row.mean_rel_error:.3g}",
                ]
                for row in rows[:top]
            ],
        )
        _print_updates(report.updates, top)
        for note in report.notes:
            print(f"note: {note}")


@app.command()
def sweep(
    states: States,
    spec: Annotated[
        list[str] | None,
        typer.Option(
            help="A quantizer such as B128/DE@4s, or a pair such as "
            "'B128/DE@4s + rank1/linear@4u'; may be repeated. The standard pairs if left out."
        ),
    ] = None,
    out: Out = Path("runs/sweep"),
    step: Annotated[int | None, typer.Option(help="Captured step; the last if left out.")] = None,
    codebook: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILE: a map of your own, one value a line; may be repeated."),
    ] = None,
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

    loaded = captures.load(states, step=step)
    with _progress(quiet=as_json) as advance:
        frame = sweeps.run(
            loaded,
            spec or sweeps.STANDARD,
            out=out / "sweep",
            min_quantized_size=min_quantized_size,
            codebooks=[_codebook(given) for given in codebook or []],
            progress=lambda done, total, note: advance("sweep quantizers", done, total, note),
        )
    if as_json:
        _print_json(json.loads(frame.to_json(orient="records")))
        return
    for state in frame["state"].unique():
        rows = sweeps.summarize(frame, state=state).sort_values("mean_abs_error").head(top)
        _print_table(
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
    print(f"rows: {out / 'sweep' / 'sweep.parquet'}")


@app.command()
def figures(
    states: Annotated[
        Path | None, typer.Argument(help="Captured states to analyze; none to draw anew.")
    ] = None,
    out: Out = Path("runs/sweep"),
    min_quantized_size: MinSize = 4096,
    as_json: AsJson = False,
) -> None:
    """Analyze captured states and draw every figure to OUT/figures.

    Examples:

        qmaps figures states --out runs/mine

        qmaps figures --out runs/lab
    """
    from qmaps.lab import analyze_states, draw

    with _progress(quiet=as_json) as advance:
        if states is not None:
            analyze_states(
                states,
                out,
                min_quantized_size=min_quantized_size,
                progress=lambda done, total, note: advance("analyze states", done, total, note),
            )
        drawn = draw(
            out, progress=lambda done, total, note: advance("draw figures", done, total, note)
        )
    if as_json:
        _print_json([str(path) for path in drawn])
    else:
        print("\n".join(map(str, drawn)))


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Run folder with figures, frames or a sweep.")],
    markdown: Annotated[
        Path | None, typer.Option(help="Also write the claims and numbers as Markdown here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write RUN/report.html, one page that needs no other file.

    Examples:

        qmaps report runs/lab

        qmaps report runs/lab --markdown beside-the-papers.md
    """
    from qmaps import report as reports

    pages = {"report": reports.write(run)}
    if markdown is not None:
        pages["markdown"] = reports.write_markdown(run, markdown)
    if as_json:
        _print_json({name: str(path) for name, path in pages.items()})
    else:
        for name, path in pages.items():
            print(f"{name}: {path.resolve()}")


@app.command()
def speedup(
    hardware: Annotated[
        Path | None,
        typer.Option(help="JSON of hardware, and of a job if need be; the paper's if left out."),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Measure coding and transfers between two processes."),
    ] = False,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of measured hardware.")] = 32,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="Devices in each of them.")] = 3,
    spec: Annotated[
        list[str] | None,
        typer.Option(help="A quantizer of messages beside 32 bits; may be repeated."),
    ] = None,
    out: Out = Path("runs/speedup"),
    as_json: AsJson = False,
) -> None:
    """Predict the speed-up of parallel training, and return the 2015 paper's tables.

    OUT gets the tables, the curves and their figure, and the hardware as a file for --hardware.

    Examples:

        qmaps speedup --out runs/speedup

        qmaps speedup --calibrate --nodes 1 --gpus-per-node 8 --out runs/here

        qmaps speedup --hardware runs/here/hardware.json --spec B128/DE@4s
    """
    from qmaps import speedup as model
    from qmaps.quantizer import quantizer
    from qmaps.speedup import paper, write

    if calibrate and hardware is not None:
        raise BadValueError("give either --hardware or --calibrate, and not both")
    chosen = [quantizer(text) for text in spec or ["B2048/tree@8s", "B2048/tree@4s"]]
    place, job = paper.HARDWARE, None
    with _progress(quiet=as_json) as advance:
        if calibrate:
            advance("measure transfers", 0, 1, "")
            place = model.calibrate(chosen, nodes=nodes, gpus_per_node=gpus_per_node)
            advance("measure transfers", 1, 1, "")
        elif hardware is not None:
            place, job = write.read(hardware)
        job = job or paper.ALEXNET
        tables = model.tables()
        curves = model.curves(
            job,
            place,
            {"32-bit": None} | {q.spec: q for q in chosen},
            progress=lambda done, total, note: advance("predict", done, total, note),
        )
        command = " ".join(["qmaps", *sys.argv[1:]])
        paths = write.write(out, command, tables, curves, place, job)
    best = curves[(curves["panel"] == "GPUs") & (curves["gpus"] == place.gpus)]
    if as_json:
        _print_json(
            {
                "paths": {name: str(path) for name, path in paths.items()},
                "hardware": place.name,
                "job": job.name,
                "best": json.loads(best.to_json(orient="records")),
                "tables": json.loads(tables.to_json(orient="records")),
            }
        )
        return
    _print_table(
        f"{place.name}: {place.gpus} devices",
        ["messages", "best sub-batch", "speed-up"],
        [
            [r["quantizer"], str(r["sub_batch"]), f"{r['speedup']:.1f}"]
            for r in best.to_dict("records")
        ],
    )
    print("\n".join(map(str, paths.values())))


@app.command()
def papers(
    paper: Annotated[
        list[str] | None,
        typer.Argument(help="8-bit-optimizers, 4-bit-optimizers, and so on; all if left out."),
    ] = None,
    quick: Annotated[bool, typer.Option(help="A small size, for a look or a test.")] = False,
    states: Annotated[
        list[Path] | None,
        typer.Option(help="Show these captured states in place of ours; may be repeated (seeds)."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the pages: reports; RUNS/reports with --quick or --states."),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(help="What pages are made from: runs/papers, -quick, or -own."),
    ] = None,
    reports: Annotated[
        Path, typer.Option(help="Folder of the tables that other commands made.")
    ] = Path("reports"),
    as_json: AsJson = False,
) -> None:
    """Make the papers' figures and tables, ours beside theirs: one page a paper, and a summary.

    Examples:

        qmaps papers

        qmaps papers 8-bit-optimizers --quick

        qmaps papers --states checkpoint-500/optimizer.pt
    """
    from qmaps import capture as captures
    from qmaps.papers import run

    suffix = "-own" if states else "-quick" if quick else ""
    kept = Path(f"runs/papers{suffix}") if runs is None else runs
    target = out or (kept / "reports" if suffix else Path("reports"))
    with _progress(quiet=as_json) as advance:
        page = run(
            paper or (),
            out=target,
            runs=kept,
            reports=reports,
            states=[captures.load(path) for path in states or []],
            quick=quick,
            command=" ".join(["qmaps", *sys.argv[1:]]),
            progress=advance,
        )
    if as_json:
        _print_json({"summary": str(page), "out": str(target)})
    else:
        print(f"summary: {page.resolve()}")


@app.command()
def memory(
    model: Annotated[
        str, typer.Argument(help="A workload, or MODULE:FUNCTION that returns a torch model.")
    ],
    params: Annotated[
        str, typer.Option(help="Quantizer of the parameters, or 32bit.")
    ] = "B2048/linear0@12s",
    grads: Annotated[
        str, typer.Option(help="Quantizer of the gradients, or 32bit.")
    ] = "B2048/linear0@8s",
    state: Annotated[
        list[str] | None,
        typer.Option(help="NAME=SPEC of an optimizer's state, or NAME=32bit; may be repeated."),
    ] = None,
    min_quantized_size: Annotated[
        int, typer.Option(min=0, help="States of at most this many elements stay in 32 bits.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Predict what parameters, gradients and optimizer states of a model take.

    Examples:

        qmaps memory stdlib-lm

        qmaps memory mymodels:make --params 32bit --grads 32bit --state exp_avg=B256/DE@8s
    """
    from qmaps import lpmm
    from qmaps.lpmm.memory import states_of

    found = lpmm.predict(
        _model(model),
        params,
        grads,
        states_of(state or ["momentum_buffer=B2048/DE@8s"]),
        min_quantized_size=min_quantized_size,
    )
    if as_json:
        about = {"numel": found.numel, "nbytes": found.nbytes, "parts": found.parts}
        _print_json({**about, "bits_per_parameter": found.bits_per_parameter})
    else:
        print(f"{model}: {found.numel:,} parameters\n{found}")


def _model(name: str) -> Any:
    """The model of a workload, or of an importable function that needs no arguments."""
    import importlib

    from qmaps import workloads

    module, separator, function = name.partition(":")
    if not separator:
        return workloads.get(name).model(0)
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise BadValueError(f"model={name!r} cannot be imported ({error})") from None
    finally:
        sys.path.remove("")


@app.command()
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
    from qmaps import maps as all_maps
    from qmaps import normalize

    if spec is not None:
        map_ = _map(spec)
        values = map_.codebook().tolist()
        if as_json:
            _print_json({"map": map_.spec, "values": values})
        else:
            _print_table(
                f"{map_.spec}: {len(values)} values",
                ["code", "value"],
                [[str(code), str(value)] for code, value in enumerate(map_.codebook().numpy())],
            )
        return
    rows: list[dict[str, Any]] = []
    for name in all_maps.names():
        cls = all_maps.REGISTRY[name]
        widths = {"su"[not s]: _span(_widths(cls, s)) for s in cls.signs}
        about = (cls.__doc__ or "").strip().splitlines()[0]
        rows.append({"map": name, "widths": widths, "fitted": cls.fitted, "about": about})
    if as_json:
        _print_json({"maps": rows, "normalizers": normalize.names()})
        return
    _print_table(
        "maps",
        ["map", "signed", "unsigned", "about"],
        [
            [r["map"], r["widths"].get("s", "-"), r["widths"].get("u", "-"), r["about"]]
            for r in rows
        ],
    )
    print("normalizers: " + ", ".join(normalize.names()) + "; each but logB<n> also with x8, and &")


def _wanted_states(given: list[str] | None) -> str | dict[str, str | None] | None:
    """The option --states: a name, or specs by state."""
    if not given:
        return None
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    specs: dict[str, str | None] = {}
    for pair in given:
        state, separator, spec = pair.partition("=")
        if not separator:
            raise BadValueError(f"states={pair!r} must be STATE=SPEC where there are several")
        specs[state] = None if spec == "32bit" else spec
    return specs


def _print_updates(updates: Sequence[UpdateRow], top: int) -> None:
    """What a conversion did to Adam's updates."""
    rows = sorted(updates, key=lambda row: row.max_abs_error, reverse=True)
    if rows:
        _print_table(
            "Adam update m / (sqrt(v) + eps), and zeros of v under a non-zero m",
            [
                "parameter",
                "max abs error",
                "mean rel error",
                "zeros",
                "of source",
                "raised",
                "first at",
            ],
            [
                [
                    row.parameter,
                    f"{row.max_abs_error:.3g}",
                    f"{row.mean_rel_error:.3g}",
                    str(row.zeros.found),
                    str(row.zeros.inherited),
                    str(row.zeros.raised),
                    ", ".join(map(str, row.zeros.first)),
                ]
                for row in rows[:top]
            ],
        )


def _options(stable_embedding: bool) -> dict[str, Any]:
    """Options of a workload: those given, as not every workload has them."""
    return {"stable_embedding": True} if stable_embedding else {}


def _contender(name: str) -> Contender:
    from qmaps.lab import Contender
    from qmaps.optim import AdamW
    from qmaps.optim.presets import preset
    from qmaps.pair import Pair

    if name == "32bit":
        return Contender("32-bit AdamW")
    if "/" not in name:
        preset(name)  # raises with what is allowed
        return Contender(f"AdamW {name}", name)
    pair = Pair.parse(name)
    moments = dict(zip(AdamW.state_names, (pair.first, pair.second), strict=True))
    return Contender(f"AdamW {pair.spec}", moments)


def _codebook(given: str) -> Codebook:
    from qmaps.maps.codebook import Codebook

    name, separator, file = given.partition("=")
    try:
        if not separator:
            raise ValueError("no '='")
        values = [float(line) for line in Path(file).read_text(encoding="utf-8").split()]
    except (OSError, ValueError) as error:
        raise BadValueError(
            f"codebook={given!r} must be NAME=FILE with one number a line ({error})"
        ) from None
    return Codebook(values, label=name)


def _map(spec: str) -> Map:
    from qmaps.quantizer import quantizer

    normalizer = "logB128" if spec.lower().startswith("log2") else "tensor"
    return quantizer(f"{normalizer}/{spec}").map


def _widths(cls: type[Map], signed: bool) -> range:
    """The widths of a map class with its default fields."""
    for bits in range(2, 17):
        try:
            return cls(bits=bits, signed=signed).widths(signed)
        except BadValueError:
            continue
    raise AssertionError(f"{cls.__name__} allows no width")


def _span(widths: range) -> str:
    return f"{widths[0]}" if len(widths) == 1 else f"{widths[0]}-{widths[-1]}"


def _loss_cells(row: dict[Any, Any]) -> list[str]:
    """A row of `summarize_losses` as text."""
    several = row["seeds"] > 1
    return [
        row["run"],
        str(row["seeds"]),
        f"{row['mean']:.4f}",
        f"{row['std']:.4f}" if several else "-",
        f"{row['difference']:+.4f}",
        f"{row['difference_std']:.4f}" if several else "-",
        f"{row['state_mib']:.2f}",
    ]


def _write_table(
    path: Path, records: list[dict[Any, Any]], workload: str, unit: str, steps: int
) -> None:
    import platform

    import torch

    from qmaps import __version__
    from qmaps.files import output_folder, write_text

    output_folder(path.parent, "table")
    header = ["optimizer", "seeds", "mean", "std", "minus the first", "its std", "state (MiB)"]
    lines = [
        f"# Final validation loss of {workload} ({unit}), {steps} steps",
        "",
        f"`{' '.join(['qmaps', *sys.argv[1:]])}`",
        "",
        f"qmaps {__version__}, torch {torch.__version__}, {platform.machine()}, "
        f"{torch.get_num_threads()} threads. Spread: sample standard deviation over seeds; the "
        "difference is taken seed by seed, on the same weights and batches.",
        "",
        "| " + " | ".join(header) + " |",
        "|---|" + "---:|" * (len(header) - 1),
        *("| " + " | ".join(_loss_cells(row)) + " |" for row in records),
    ]
    write_text(path, "\n".join(lines) + "\n")


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def _print_table(title: str, header: list[str], rows: list[list[str]]) -> None:
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(header):
        table.add_column(name, justify="left" if index == 0 or name == "about" else "right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


class _Bars:
    """One progress bar per stage; nothing is shown before the first has begun."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int, note: str) -> None:
        self.progress.start()
        if stage not in self.tasks:
            self.tasks[stage] = self.progress.add_task(stage, total=total, note="")
        self.progress.update(self.tasks[stage], completed=done, total=total, note=note)


@contextmanager
def _progress(quiet: bool) -> Iterator[_Bars]:
    """Progress bars on stderr; none where the output is for a script."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    bars = _Bars(Progress(*columns, console=errors, disable=quiet))
    try:
        yield bars
    finally:
        if bars.tasks:
            bars.progress.stop()


if __name__ == "__main__":
    main()
