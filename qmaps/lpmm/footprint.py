"""Model memory: bytes of parameters, gradients and states, predicted or measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from qmaps.algebra.quantizer import Quantizer, quantizer
from qmaps.errors import BadTypeError
from qmaps.lpmm.convert import GRADS, PARAMS, check_initialized
from qmaps.lpmm.parameter import LowPrecisionParameter
from qmaps.lpmm.sgd import MOMENTUM

FULL = "32bit"
"""In place of a spec: plain tensors. Parameters and gradients keep their dtype, states float32."""

Spec = str | Quantizer | None


@dataclass(frozen=True)
class ModelMemory:
    """Bytes of a model's memory, scales and codebooks included; activations are not part of it.

    Attributes:
        numel: elements of all parameters, tied ones once.
        params: bytes of the parameters.
        grads: bytes of their gradients.
        states: bytes of each state of the optimizer.
    """

    numel: int
    params: int
    grads: int
    states: Mapping[str, int]

    @property
    def nbytes(self) -> int:
        """All together."""
        return self.params + self.grads + sum(self.states.values())

    @property
    def parts(self) -> dict[str, int]:
        """Bytes of parameters, gradients and states."""
        return {"parameters": self.params, "gradients": self.grads, **self.states}

    def bits(self, nbytes: int) -> float:
        """Bits for one element of a parameter; 0 without parameters."""
        return 8 * nbytes / self.numel if self.numel else 0.0

    @property
    def bits_per_parameter(self) -> float:
        """Bits of all for one element of a parameter."""
        return self.bits(self.nbytes)

    def __str__(self) -> str:
        rows = [*self.parts.items(), ("all", self.nbytes)]
        wide = max(len(name) for name, _ in rows)
        return "\n".join(
            f"{name.ljust(wide)}  {n:>15,} bytes  {self.bits(n):6.2f} bits per parameter"
            for name, n in rows
        )


def predict(
    model: nn.Module,
    params: Spec = PARAMS,
    grads: Spec = GRADS,
    states: Mapping[str, Spec] | None = None,
    *,
    min_quantized_size: int = 0,
) -> ModelMemory:
    """Predict the memory of training a model, from its parameters' shapes alone.

    Args:
        model: not converted; on any device, "meta" too.
        params: quantizer of the parameters; "32bit" or None for plain tensors of their dtype.
        grads: quantizer of the gradients, the same.
        states: quantizer of each of the optimizer's states; "32bit" or None for float32. The
            momentum of `LPMMSGD` if left out.
        min_quantized_size: states of at most this many elements stay float32, as in
            `qmaps.optim`.

    Raises:
        BadTypeError: `model` is no module.
        BadValueError: a parameter of a lazy module has no shape yet.
        SpecError: a spec does not parse.

    Source: LPMM, sections 1 and 3.1: 12 + 8 + 8 = 28 bits, against 96 in full precision and 72
    with 8-bit momentum.

    >>> model = nn.Linear(2048, 1024, bias=False)
    >>> print(predict(model))
    parameters             3,149,824 bytes   12.02 bits per parameter
    gradients              2,101,248 bytes    8.02 bits per parameter
    momentum_buffer        2,101,248 bytes    8.02 bits per parameter
    all                    7,352,320 bytes   28.05 bits per parameter
    >>> predict(model, "32bit", "32bit", {"momentum_buffer": "32bit"}).bits_per_parameter
    96.0
    """
    if not isinstance(model, nn.Module):
        raise BadTypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    chosen = {"momentum_buffer": MOMENTUM} if states is None else states
    of_params, of_grads = _read(params), _read(grads)
    of_states = {name: _read(spec) for name, spec in chosen.items()}
    nbytes = dict.fromkeys(of_states, 0)
    numel = in_params = in_grads = 0
    for name, param in model.named_parameters():
        check_initialized(name, param)
        shape, plain = tuple(param.shape), param.numel() * param.element_size()
        numel += param.numel()
        in_params += plain if of_params is None else of_params.nbytes(shape)
        if not param.requires_grad:
            continue
        in_grads += plain if of_grads is None else of_grads.nbytes(shape)
        for state, q in of_states.items():
            small = param.numel() <= min_quantized_size
            nbytes[state] += 4 * param.numel() if q is None or small else q.nbytes(shape)
    return ModelMemory(numel, in_params, in_grads, nbytes)


def measure(model: nn.Module, optimizer: torch.optim.Optimizer) -> ModelMemory:
    """Measure the memory of a model and its optimizer now, converted or not.

    Missing gradients and states are not counted; a low-precision accumulator is
    there from the beginning. Step counters are left out.
    """
    numel = in_params = in_grads = 0
    nbytes: dict[str, int] = {}
    for param in model.parameters():
        numel += param.numel()
        if isinstance(param, LowPrecisionParameter):
            in_params += param.codes.nbytes
            if param.accumulator is not None:
                in_grads += param.accumulator.total.nbytes
        else:
            in_params += param.untyped_storage().nbytes()
            if param.grad is not None:
                in_grads += param.grad.untyped_storage().nbytes()
        for name, value in optimizer.state.get(param, {}).items():
            if name != "step" and hasattr(value, "nbytes"):
                nbytes[name] = nbytes.get(name, 0) + value.nbytes
    return ModelMemory(numel, in_params, in_grads, nbytes)


def _read(spec: Spec) -> Quantizer | None:
    return None if spec is None or spec == FULL else quantizer(spec)
