"""What there is: ``qmaps maps``, ``memory`` and ``doctor``."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any

import typer

from qmaps.cli.options import AsJson
from qmaps.cli.output import print_json, print_lines, print_rows
from qmaps.errors import BadValueError, shown
from qmaps.normalize.scale_format import SUFFIXES

UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
"""Letters behind a number of parameters."""


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
        typer.Option(help="NAME=SPEC or NAME=32bit for an optimizer state; may be repeated."),
    ] = None,
    min_quantized_size: Annotated[
        int, typer.Option(min=0, help="States of at most this many elements stay in 32 bits.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Predict the memory of a model's parameters, gradients and optimizer states.

    Examples:

        qmaps memory stdlib-lm

        qmaps memory mymodels:make --params 32bit --grads 32bit --state exp_avg=B256/DE@8s
    """
    from qmaps import lpmm
    from qmaps.lpmm.footprint import states_of

    footprint = lpmm.predict(
        _model(model),
        params,
        grads,
        states_of(state or ["momentum_buffer=B2048/DE@8s"]),
        min_quantized_size=min_quantized_size,
    )
    if as_json:
        record = {"numel": footprint.numel, "nbytes": footprint.nbytes, "parts": footprint.parts}
        print_json({**record, "bits_per_parameter": footprint.bits_per_parameter})
    else:
        print_lines(f"{model}: {footprint.numel:,} parameters", *str(footprint).split("\n"))


def _model(name: str) -> Any:
    """The model of a workload, or of an importable function without arguments."""
    import importlib

    from qmaps.lab import workloads

    module, separator, function = name.partition(":")
    if not separator:
        return workloads.get(name).model(0)
    if not all(part.isidentifier() for part in [*module.split("."), function]):
        raise BadValueError(
            f"model={shown(name)} must be a workload or MODULE:FUNCTION, a function that returns a "
            "model"
        )
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise BadValueError(f"model={name!r} cannot be imported ({error})") from None
    except TypeError as error:
        raise BadValueError(
            f"model={name!r} cannot be called without arguments ({error})"
        ) from None
    except Exception as error:  # the function is the user's code
        kind = type(error).__name__
        raise BadValueError(f"model={name!r} raised {kind}: {error}") from error
    finally:
        sys.path.remove("")


def doctor(
    parameters: Annotated[
        str | None,
        typer.Option(help="Size of a model, such as 7B, 350M or 125000000: what its step costs."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0, help="Time for measurements, about; 0 measures nothing.")
    ] = 4.0,
    as_json: AsJson = False,
) -> None:
    """Say what this installation has, what is wrong with it, and what a step costs here.

    It prints versions, back ends and why others do not run, the processor, memory bandwidth, and
    the time of a step of AdamW in 32, 8 and 4 bits. For every problem it names the command that
    repairs it; the exit code is 1 if there is one. Paste the output into reports of problems.

    Examples:

        qmaps doctor

        qmaps doctor --parameters 7B

        qmaps doctor --seconds 0 --json
    """
    from qmaps.optim.doctor import doctor as examine

    report = examine(None if parameters is None else _count(parameters), seconds=seconds)
    if as_json:
        print_json(report.as_dict())
    else:
        print_lines(*str(report).split("\n"))
    if report.problems:
        raise typer.Exit(1)


def _count(text: str) -> int:
    """A number of parameters: digits, with K, M, B or T behind it."""
    match = re.fullmatch(
        r"(\d{1,16}(?:\.\d{1,9})?)([KMBT]?)", text.strip().upper().replace("_", "")
    )
    if match is None:
        raise BadValueError(
            f"parameters={text!r} must be a number of parameters, such as 7B, 350M or 125000000"
        )
    return round(float(match[1]) * UNITS[match[2]])
