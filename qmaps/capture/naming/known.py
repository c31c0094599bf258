"""Shapes and kinds of a model's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Known:
    """The parameters of a model, in the model's order.

    Attributes:
        source: source of the parameters, for messages.
        shapes: shape of each parameter by its name; a tied parameter has its first name.
        norms: names of the parameters that are in an ``nn.LayerNorm``, as far as known.
    """

    source: str
    shapes: Mapping[str, Shape]
    norms: frozenset[str] = frozenset()

    @classmethod
    def of(cls, model: nn.Module, source: str) -> Known:
        """Return the trained parameters of a model.

        Args:
            model: the model, also on the meta device.
            source: source of the model, for messages.
        """
        shapes = {
            name: tuple(parameter.shape)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        norms = {
            f"{prefix}.{name}".removeprefix(".")
            for prefix, module in model.named_modules()
            if isinstance(module, nn.LayerNorm)
            for name, _ in module.named_parameters(recurse=False)
        }
        return cls(source, shapes, frozenset(norms))
