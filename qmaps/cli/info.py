"""What there is: ``qmaps maps``, ``memory`` and ``doctor``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from qmaps.cli.options import AsJson
from qmaps.cli.output import print_json, print_lines, print_result, print_rows
from qmaps.errors import BadValueError, nearest, shown
from qmaps.normalize.scale_format import SUFFIXES


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
    from qmaps.algebra.spec import parse_map
    from qmaps.maps import _transforms as transforms

    if spec is not None:
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
    rows: list[dict[str, Any]] = []
    for name in all_maps.names():
        cls = all_maps.REGISTRY[name]
        widths = {"su"[not s]: _span(cls.widths_of(s)) for s in cls.signs}
        summary = (cls.__doc__ or "").strip().splitlines()[0]
        rows.append({"map": name, "widths": widths, "fitted": cls.fitted, "about": summary})
    if as_json:
        print_json({"maps": rows, "normalizers": normalize.names()})
        return
    print_rows(
        "maps",
        {"map": "{map}", "signed": "{widths[s]}", "unsigned": "{widths[u]}", "about": "{about}"},
        [{**row, "widths": {"s": "-", "u": "-", **row["widths"]}} for row in rows],
    )
    suffixes = ", ".join(sorted(SUFFIXES))
    print_lines(f"normalizers: {', '.join(normalize.names())}; each but logB<n>, powB<n>r<n> and")
    print_lines(f"  unscaled also with &, and with one of the formats of scales: {suffixes}")
    print_lines(
        f"transforms before a map: {', '.join(transforms.written())}, such as sqrt:linear0@8u"
    )


def _span(widths: range) -> str:
    return f"{widths[0]}" if len(widths) == 1 else f"{widths[0]}-{widths[-1]}"


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
    import torch

    from qmaps.cli.model_size import Adapted, model_of, with_lora

    if dtype is not None and dtype not in ("float32", "bfloat16", "float16"):
        raise BadValueError(f"dtype={shown(dtype)} must be float32, bfloat16 or float16")
    adapted: Adapted | None = None
    if lora_rank is None:
        if lora_targets != "all-linear":
            raise BadValueError(f"lora_targets={shown(lora_targets)} needs --lora-rank")
        module = base = model_of(model)
    else:
        module = adapted = with_lora(model, lora_rank, lora_targets)
        base = adapted.model
    if dtype is not None:
        base.to(getattr(torch, dtype))
    rows, in_adamw = _presets(model, module, optimizer, min_quantized_size)
    numel = _numel(module)
    if as_json:
        about = {"numel": numel, "optimizer": optimizer, "numel_in_adamw": in_adamw}
        if adapted is not None:
            about |= {"lora_layers": adapted.layers, "lora_numel": _numel(adapted.adapters)}
        print_json({**about, "presets": rows})
        return
    dtypes = {str(param.dtype).removeprefix("torch.") for param in base.parameters()}
    unit, size = ("GB", GB) if rows[0]["total"] > GB / 10 else ("MB", GB // 1000)
    columns = ("states", "gradients", "parameters", "total")
    forms = {name: f"{{{name}:.2f}}" for name in columns}
    print_rows(
        f"{model}: {numel:,} parameters in {' and '.join(sorted(dtypes))}, {optimizer}, {unit}",
        {"preset": "{preset}", **forms, "fits in": "{fits}"},
        [{**row, **{name: row[name] / size for name in columns}} for row in rows],
    )
    if adapted is not None:
        print_lines(
            f"LoRA of rank {lora_rank} in {adapted.layers} linear layers: only its "
            f"{_numel(adapted.adapters):,} parameters, in float32,",
            "have gradients and states.",
        )
    if in_adamw:
        print_lines(f"AdamW has {in_adamw:,} of them, which {optimizer} does not step.")
    print_lines(
        f"1 {unit} is {size:,} bytes. Activations, and what a GPU needs itself, come on top."
    )


def _numel(module: Any) -> int:
    return sum(param.numel() for param in module.parameters())


GB = 10**9
CARDS = (8, 16, 24, 48, 80)
"""Sizes of the memory of graphics cards in GB."""


def _presets(
    model: str, module: Any, optimizer: str, min_quantized_size: int | None
) -> tuple[list[dict[str, Any]], int]:
    """Bytes that training a model takes with each preset.

    The number of elements that the optimizer does not step, and AdamW does, is returned too.
    """
    from qmaps import optim
    from qmaps.cli.model_size import Sized
    from qmaps.optim.records import is_whole, states_of
    from qmaps.optim.rule import MatrixRule

    cls: Any = optim.rules().get(optimizer)
    if cls is None:
        raise BadValueError(
            f"optimizer={shown(optimizer)} must be one of {', '.join(optim.rules())}"
            f"{nearest(optimizer, optim.rules())}"
        )
    sizes = [(p.numel() * p.element_size(), p.requires_grad) for p in module.parameters()]
    held = {
        "gradients": sum(size for size, is_trained in sizes if is_trained),
        "parameters": sum(size for size, _ in sizes),
    }
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
    rows = []
    for preset in optim.PRESETS:
        states = sum(
            rule([{"params": params}], state_quantizers=preset, **options).memory().nbytes
            for rule, params in of_rules
        )
        total = states + sum(held.values())
        fits = next((f"{card} GB" for card in CARDS if total < card * GB), f"> {CARDS[-1]} GB")
        rows.append({"preset": preset, "states": states, **held, "total": total, "fits": fits})
    return rows, sum(param.numel() for _, param in refused)


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
