"""Options of several commands, and the objects of their values."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qmaps.cli.output import print_text
from qmaps.errors import BadValueError

if TYPE_CHECKING:
    from qmaps.capture import CapturedStates
    from qmaps.lab import Contender
    from qmaps.maps.codebook import Codebook

Out = Annotated[Path, typer.Option(help="Run folder; all files of the run are written to it.")]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of weights and batches.")]
Steps = Annotated[
    int | None, typer.Option(min=1, help="Training steps; each workload has a default.")
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print only JSON, for scripts; NaN and infinity become null.")
]
Workload = Annotated[str, typer.Argument(help="stdlib-lm, stdlib-lm-tiny or digits.")]
States = Annotated[
    Path,
    typer.Argument(help="Captured states (folder or .safetensors), or an optimizer checkpoint."),
]
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        help="Read the states of this optimizer checkpoint (torch.save), or of a folder with "
        "optimizer.pt, instead of training a workload."
    ),
]
CheckpointNames = Annotated[
    Path | None,
    typer.Option(
        help="Names of the checkpoint's parameters: the model's file (model.safetensors, "
        "pytorch_model.bin, an index of shards, or a state_dict such as model.pt), or a text file "
        "with one name per line. By default those of the model beside the checkpoint."
    ),
]
Betas = Annotated[
    str | None,
    typer.Option(
        help="Adam's betas, such as 0.9,0.95, for a checkpoint without them, as most of other "
        "frameworks are."
    ),
]
Eps = Annotated[float | None, typer.Option(help="Adam's eps, for a checkpoint without it.")]
Pairs = Annotated[
    list[str] | None,
    typer.Option(
        "--spec",
        help="A pair of quantizers such as 'B128/DE@4s + rank1/linear@4u', or a preset such as "
        "4bit; may be repeated. By default standard pairs.",
    ),
]
Parameters = Annotated[
    list[str] | None, typer.Option(help="Parameter names, with wildcards; may be repeated.")
]
Load = Annotated[
    list[Path] | None,
    typer.Option(
        "--load",
        envvar="QMAPS_LOAD",
        help="Run this Python file, which declares maps or normalizers for specs to name; only "
        "files that you trust. May be repeated.",
    ),
]
CodebookFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--codebook",
        envvar="QMAPS_CODEBOOK",
        help='A codebook for specs to name: JSON such as {"label": "mine", "signed": true, '
        '"values": [-1, 0, 0.3, 1]} for B128/mine@2s. May be repeated.',
    ),
]
MinSize = Annotated[
    int, typer.Option(min=0, help="Leave out tensors of at most this many elements.")
]


First = Annotated[
    str | None,
    typer.Option(
        "--first",
        help="Name of the state that is the first moment, where it is not exp_avg; a pattern such "
        "as '*_exp_avg_0' too. Names of known packages need not be given.",
    ),
]
Second = Annotated[
    str | None,
    typer.Option("--second", help="Name of the second moment, where it is not exp_avg_sq."),
]


def as_adam(states: CapturedStates, first: str | None, second: str | None) -> CapturedStates:
    """The states with Adam's names, from those of --first and --second or of known packages."""
    own = {"exp_avg": first, "exp_avg_sq": second}
    return states.as_adam({moment: name for moment, name in own.items() if name is not None})


def own_codebooks(load: list[Path] | None, codebook: list[Path] | None) -> list[Codebook]:
    """Run the files of --load, and return their codebooks and those of --codebook."""
    if not load and not codebook:
        return []
    from qmaps.algebra.own_maps import load_files, read_codebook

    return [*load_files(load or ()), *map(read_codebook, codebook or ())]


def pair_of(betas: str | None) -> tuple[float, float] | None:
    """The numbers of --betas."""
    if betas is None:
        return None
    try:
        first, second = map(float, betas.split(","))
    except ValueError:
        raise BadValueError(f"betas={betas!r} must be two numbers, such as 0.9,0.95") from None
    return first, second


def refuse_given(context: typer.Context, names: Iterable[str], why: str) -> None:
    """Raise if one of these options or arguments is on the command line.

    Args:
        context: the command's context.
        names: names of its parameters.
        why: text of the error after the option and its value.
    """
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise BadValueError(f"{name}={str(context.params[name])!r} {why}")


def as_contender(name: str) -> Contender:
    """An optimizer by the name of its preset, or by its pair of quantizers."""
    from qmaps.algebra.pair import Pair
    from qmaps.lab import Contender
    from qmaps.optim import AdamW
    from qmaps.optim.choice_file import is_file, load_choice
    from qmaps.optim.presets import preset

    if name == "32bit":
        return Contender("32-bit AdamW")
    if is_file(name):
        return Contender(f"AdamW {name}", **load_choice(name))
    if "/" not in name:
        preset(name)  # raises an error that lists the presets
        return Contender(f"AdamW {name}", name)
    pair = Pair.parse(name)
    moments = dict(zip(AdamW.state_names, (pair.first, pair.second), strict=True))
    return Contender(f"AdamW {pair.spec}", moments)


Share = Annotated[
    float | None,
    typer.Option(
        help="Share of each parameter to replay, in whole rows: 0.01 is 1 %; by default all of it, "
        "or for recommend about 262,144 elements of all."
    ),
]
Step = Annotated[
    int | None,
    typer.Option(
        help="Captured step; by default the last, for replays the last with recorded gradients."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, help="Number of processes, which read the states themselves; by default only one."
    ),
]


def print_source(states: CapturedStates) -> None:
    """Print remarks on a checkpoint: names, moments, layout, states left out, quantized ones."""
    if states.naming.startswith("numbers"):
        print_text(f"parameter names: {states.naming}; --names gives them")
    if states.note:
        print_text(states.note)
    for moment, own in states.aliases.items():
        print_text(f"{moment} is {', '.join(own)} of the optimizer")
    if states.skipped:
        more = f", and {len(states.skipped) - 1} more" if len(states.skipped) > 1 else ""
        print_text(f"left out: {states.skipped[0]}{more}")
    if coded := states.quantized():
        print_text(
            f"states of {len(coded)} of {len(states.parameters())} parameters are quantized in the "
            "checkpoint already; errors are those of quantizing the decoded values again"
        )
