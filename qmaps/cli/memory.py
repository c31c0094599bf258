"""``qmaps memory``."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import typer

from qmaps.cli import catalogue, sizes
from qmaps.cli.options import AsJson
from qmaps.cli.output import announce, print_json, print_lines, print_rows, print_text
from qmaps.errors import BadValueError, nearest, shown
from qmaps.storage import units

DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of an element by dtype."""
GB = 10**9
CARDS = (8, 16, 24, 48, 80)
"""Sizes of the memory of graphics cards in GB."""


class Model(NamedTuple):
    """Size of a model and of its optimizer's states.

    Attributes:
        numel: elements of all parameters.
        dtypes: names of the parameters' dtypes.
        parameters: bytes of the parameters.
        gradients: bytes of the gradients.
        states: bytes of the optimizer's states by preset.
        in_adamw: elements that the optimizer does not step, and AdamW does.
        lora_layers, lora_numel: linear layers with LoRA adapters, and elements of these; 0 without.
    """

    numel: int
    dtypes: set[str]
    parameters: int
    gradients: int
    states: dict[str, int]
    in_adamw: int
    lora_layers: int = 0
    lora_numel: int = 0


def memory(
    model: Annotated[
        str,
        typer.Argument(
            help="A size such as 7B; a config.json, a .safetensors file or its index, or a folder "
            "of them."
        ),
    ],
    optimizer: Annotated[str, typer.Option(help="Optimizer of qmaps.optim.")] = "AdamW",
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, bfloat16 or float16: of parameters and gradients, instead of the "
            "model's own; sizes are of bfloat16."
        ),
    ] = None,
    min_quantized_size: Annotated[
        int | None,
        typer.Option(min=0, help="States of at most this many elements stay in 32 bits."),
    ] = None,
    lora_rank: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65536,
            help="Rank of LoRA adapters (PEFT's r): only they have gradients and states, and are "
            "in float32. Needs a config.json.",
        ),
    ] = None,
    lora_targets: Annotated[
        str,
        typer.Option(
            help="Layers with adapters (PEFT's target_modules): all-linear, or names such as "
            "q_proj,v_proj."
        ),
    ] = "all-linear",
    as_json: AsJson = False,
) -> None:
    """Predict the memory of a model's parameters, gradients and optimizer states.

    The answer is a table of presets, with the smallest of 8, 16, 24, 48 and 80 GB that they fit
    in. Activations are not part of it. Parameters that the optimizer does not step, such as vectors
    with Muon, are AdamW's.

    Examples:

        qmaps memory 7B

        qmaps memory path/to/config.json --optimizer Lion --dtype float32

        qmaps memory path/to/config.json --lora-rank 16 --lora-targets q_proj,v_proj
    """
    if dtype is not None and dtype not in DTYPES:
        sizes.numel_of(model)  # an error about the model comes first
        raise BadValueError(f"dtype={shown(dtype)} must be float32, bfloat16 or float16")
    if lora_rank is None and lora_targets != "all-linear":
        raise BadValueError(f"lora_targets={shown(lora_targets)} needs --lora-rank")
    known = min_quantized_size is None and lora_rank is None
    found = _known(model, optimizer, dtype) if known else None
    if found is None:
        lora = None if lora_rank is None else (lora_rank, lora_targets)
        found = measured(model, optimizer, dtype, min_quantized_size, lora=lora)
    rows = [_row(found, preset) for preset in found.states]
    if as_json:
        about = {
            "numel": found.numel,
            "optimizer": optimizer,
            "numel_in_adamw": found.in_adamw,
        }
        if lora_rank is not None:
            about |= {"lora_layers": found.lora_layers, "lora_numel": found.lora_numel}
        print_json({**about, "presets": rows})
        return
    unit, size = ("GB", GB) if rows[0]["total"] > GB / 10 else ("MB", GB // 1000)
    columns = ("states", "gradients", "parameters", "total")
    print_rows(
        f"{model}: {found.numel:,} parameters in {' and '.join(sorted(found.dtypes))}, "
        f"{optimizer}, {unit}",
        {
            "preset": "{preset}",
            "bits": "{bits}",
            "bytes": "{state_bytes_per_parameter:.2f}",
            **{name: f"{{{name}:.2f}}" for name in columns},
            "fits in": "{fits}",
        },
        [
            {
                **row,
                "bits": units.bits(row["bits_per_state_element"]),
                **{name: row[name] / size for name in columns},
            }
            for row in rows
        ],
    )
    if lora_rank is not None:
        print_text(
            f"LoRA of rank {lora_rank} in {found.lora_layers} linear layers: only its "
            f"{found.lora_numel:,} parameters, in float32, have gradients and states."
        )
    if found.in_adamw:
        print_lines(f"AdamW has {found.in_adamw:,} of them, which {optimizer} does not step.")
    print_text(
        "bits: per state element, scales included. bytes: of all states, per parameter.",
        f"1 {unit} is {size:,} bytes. Activations, and what a GPU needs itself, come on top.",
    )


def _row(model: Model, preset: str) -> dict[str, Any]:
    states, in_32_bits = model.states[preset], model.states["32bit"]
    total = states + model.gradients + model.parameters
    return {
        "preset": preset,
        "bits_per_state_element": 32 * states / in_32_bits if in_32_bits else math.nan,
        "state_bytes_per_parameter": states / model.numel if model.numel else math.nan,
        "states": states,
        "gradients": model.gradients,
        "parameters": model.parameters,
        "total": total,
        "fits": next((f"{card} GB" for card in CARDS if total < card * GB), f"> {CARDS[-1]} GB"),
    }


def _known(model: str, optimizer: str, dtype: str | None) -> Model | None:
    """The answer for a size without torch; None where it takes the optimizer."""
    numel = sizes.numel_of(model)
    facts = None if numel is None else catalogue.facts()
    if numel is None or facts is None or optimizer not in facts["states"]:
        return None
    rows, rest = divmod(numel, sizes.COLUMNS)
    if rows < 2:  # states of one row are too small to be quantized
        return None
    states, in_adamw = catalogue.states_of(rows, rest, facts["states"][optimizer])
    dtype = dtype or sizes.DTYPE
    nbytes = numel * DTYPES[dtype]
    return Model(numel, {dtype}, nbytes, nbytes, states, in_adamw)


def measured(
    model: str,
    optimizer: str,
    dtype: str | None = None,
    min_quantized_size: int | None = None,
    *,
    lora: tuple[int, str] | None = None,
) -> Model:
    """The answer of optimizers that are made of the model's parameters without memory.

    `lora` is the rank of adapters and the names of their layers.
    """
    announce()
    import torch

    from qmaps import optim
    from qmaps.cli.model_size import Adapted, Sized, model_of, with_lora
    from qmaps.optim.records import is_whole, states_of
    from qmaps.optim.rule import MatrixRule

    module = model_of(model) if lora is None else with_lora(model, *lora)
    base = module.model if isinstance(module, Adapted) else module
    if dtype is not None:
        base.to(getattr(torch, dtype))
    cls: Any = optim.rules().get(optimizer)
    if cls is None:
        raise BadValueError(
            f"optimizer={shown(optimizer)} must be one of {', '.join(optim.rules())}"
            f"{nearest(optimizer, optim.rules())}"
        )
    options: dict[str, Any] = (
        {} if min_quantized_size is None else {"min_quantized_size": min_quantized_size}
    )
    named: list[tuple[str, Any]] = []
    refused: list[tuple[str, Any]] = []
    for name, param in module.named_parameters():
        if param.requires_grad:
            (refused if cls.unsupported_reason(param) else named).append((name, param))
    of_rules = [(cls, named)]  # perhaps of no parameters
    if refused:
        of_rules.append((optim.AdamW, refused))
    if isinstance(module, Sized) and issubclass(cls, MatrixRule):
        made = cls([{"params": named}])
        if any(is_whole(made, name) for name in states_of(made, made.param_groups[0])):
            raise BadValueError(
                f"model={shown(model)} has a size only, and the states of {optimizer} depend on "
                "the shapes of parameters; give a config.json or a .safetensors file"
            )
    states = {
        preset: sum(
            rule([{"params": params}], state_quantizers=preset, **options).memory().nbytes
            for rule, params in of_rules
        )
        for preset in optim.PRESETS
    }
    nbytes = [(p.numel() * p.element_size(), p.requires_grad) for p in module.parameters()]
    return Model(
        _numel(module),
        {str(param.dtype).removeprefix("torch.") for param in base.parameters()},
        sum(size for size, _ in nbytes),
        sum(size for size, is_trained in nbytes if is_trained),
        states,
        sum(param.numel() for _, param in refused),
        *((module.layers, _numel(module.adapters)) if isinstance(module, Adapted) else ()),
    )


def _numel(module: Any) -> int:
    return sum(param.numel() for param in module.parameters())
