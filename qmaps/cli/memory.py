"""``qmaps memory``."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from qmaps.cli.options import AsJson
from qmaps.cli.output import print_json, print_lines
from qmaps.errors import BadValueError, shown


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
