"""The order of a model's parameters, from the ``config.json`` of transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qmaps.capture.naming.fit import Unnamed
from qmaps.capture.naming.known import Known, Shape
from qmaps.storage.files import content_of, exists

CONFIG = "config.json"


def known(folder: Path, held: Mapping[str, Shape], file: str) -> Known:
    """Return the parameters of the model that ``config.json`` describes, in the model's order.

    The model is made on the meta device, where it takes no memory, by a class of transformers. Code
    that a checkpoint brings along is not run.

    Args:
        folder: the folder of ``config.json``.
        held: shape of each tensor in the model's file, by name.
        file: name of that file, for messages.

    Raises:
        Unnamed: there is no such file, transformers is not installed or cannot make the model, or
            the model has other parameters than its file.
    """
    name = _architecture(folder / CONFIG)
    try:
        import transformers
    except ImportError:
        raise Unnamed(
            f"transformers, which makes the model of {CONFIG}, is not installed"
        ) from None
    cls = getattr(transformers, name, None)
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise Unnamed(f"transformers has no model {name!r}, which {CONFIG} names")
    messages: Any = transformers.logging
    verbosity = messages.get_verbosity()
    messages.set_verbosity_error()  # the others are advice on how to train and generate
    try:
        model = _made(cls, folder)
    finally:
        messages.set_verbosity(verbosity)
    _compare(model, held, file)
    return Known.of(model, f"{CONFIG} and {file}")


def _architecture(path: Path) -> str:
    if not exists(path):
        raise Unnamed(f"there is no {CONFIG} beside it")
    try:
        config = json.loads(content_of(path))
        (name,) = config["architectures"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise Unnamed(f"{CONFIG} does not name the model's architecture") from None
    return str(name)


def _made(cls: Any, folder: Path) -> nn.Module:
    try:
        config = cls.config_class.from_pretrained(folder, local_files_only=True)
        # Initial values of a few layers are drawn on the CPU wherever the model is made.
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            model: nn.Module = cls(config)
    except Exception as error:  # what transformers raises on odd configurations
        raise Unnamed(
            f"transformers cannot make the {cls.__name__} of {CONFIG} ({type(error).__name__})"
        ) from None
    return model


def _compare(model: nn.Module, held: Mapping[str, Shape], file: str) -> None:
    """Raise unless the file holds the model's parameters, each tied one under any of its names."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    for parameter, tied in names.items():
        shapes = [held[name] for name in tied if name in held]
        if not shapes or any(shape != tuple(parameter.shape) for shape in shapes):
            raise Unnamed(f"{file} does not hold {tied[0]!r} of the model of {CONFIG}")
    odd = held.keys() - {name for tied in names.values() for name in tied}
    odd -= {name for name, _ in model.named_buffers()}
    if odd:
        raise Unnamed(f"{file} holds {min(odd)!r}, which the model of {CONFIG} does not have")
