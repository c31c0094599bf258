"""Parameters kept as packed codes, in the graph of autograd, and the sums of their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import QuantizedTensor, Quantizer
from qmaps.algebra.saved import described, from_plain, quantizer_in
from qmaps.engines.plan import memory_of, zero
from qmaps.engines.threads import safe_after_fork
from qmaps.errors import BadTypeError, BadValueError
from qmaps.lpmm.nearest import nearest
from qmaps.lpmm.tensor import LowPrecisionTensor, decoded

# The hooks that are in force; versions of torch that lack it cannot pass tensors on to them.
_outer_hooks: Callable[[bool], Any] = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None
)


class Accumulator:
    """The gradient of one parameter: g = Q(g + new), from g = 0 on.

    Its memory is there from the beginning: nothing is saved by letting go of it between steps.
    Stochastic rounding takes random numbers of purpose 3 (`qmaps.algebra.philox`), with the number
    of steps taken and the number of additions since the last.

    Attributes:
        total: codes and scales of the sum; they mean something where `count` is not 0.
        count: additions since it was emptied.
        step: steps taken by the parameter.
        drops: how often it was emptied while there was something in it.

    Source: LPMM, section 3.3 and algorithm 1.
    """

    def __init__(self, quantizer: Quantizer, like: Tensor, seed: int, number: int) -> None:
        with safe_after_fork():
            self.total: QuantizedTensor = zero(quantizer, tuple(like.shape), like.device)
        self.seed, self.number = seed, number
        self.count = self.step = self.drops = 0

    def add(self, grad: Tensor) -> None:
        """Add a gradient: float32, float16 or bfloat16, summed in float32."""
        if not grad.is_floating_point():
            raise BadTypeError(f"a gradient must be a floating-point tensor, got {grad.dtype}")
        value = grad.detach().to_dense().float()
        if self.count:
            value = self.total.dequantize().add_(value)
        key = RoundingKey(
            seed=self.seed,
            purpose=3,
            step=self.step,
            micro_batch=self.count % 2**16,
            tensor=self.number,
        )
        self.total.quantizer.quantize_unchecked(value, out=self.total, key=key)
        self.count += 1

    def clear(self) -> None:
        """Empty it."""
        self.drops += self.count > 0
        self.count = 0

    def copy(self, like: Tensor) -> Accumulator:
        """An accumulator of its own with the same contents, on the device of `like`."""
        copy = Accumulator(self.total.quantizer, like, self.seed, self.number)
        copy.total = self.total.clone()
        copy.count, copy.step = self.count, self.step
        return copy


class LowPrecisionParameter(LowPrecisionTensor):
    """A module's parameter as packed codes, its gradient in a low-precision accumulator.

    Each function that reads it gets the decoded values and drops them when it returns; what
    autograd would save of them it saves as codes, to be decoded again when backward gets there.
    The gradient goes into the accumulator and is dropped too. So no more is ever decoded than
    what one function takes, in forward and in backward.

    `grad` is the accumulated gradient as a `LowPrecisionTensor`, or None where nothing has been
    accumulated; writing it in place writes the accumulator. `torch.autograd.grad` finds no
    gradient with respect to it, and ``create_graph=True`` is refused. Another backward through a
    graph that was retained adds its gradient, as with any parameter.

    Attributes:
        codes: packed codes and scales.
        accumulator: of the gradient; None where nobody asked for gradients, as of a frozen one.
        thawed: quantizer, seed and number of the accumulator that a frozen one gets when it
            requires gradients.
    """

    accumulator: Accumulator | None
    thawed: tuple[Quantizer, int, int] | None
    _is_param = True  # what isinstance(..., torch.nn.Parameter) looks at

    @staticmethod
    def __new__(
        cls,
        codes: QuantizedTensor,
        dtype: torch.dtype = torch.float32,
        requires_grad: bool = True,
    ) -> Self:
        """A parameter of these codes."""
        self = super().__new__(cls, codes, dtype, requires_grad)
        self.accumulator = self.thawed = None
        return self

    def accumulating(self) -> Accumulator | None:
        """The accumulator, made if it is needed now."""
        if self.accumulator is None and self.requires_grad and self.thawed is not None:
            grads, seed, number = self.thawed
            self.accumulator = Accumulator(grads, self, seed, number)
        return self.accumulator

    @property
    def grad(self) -> LowPrecisionTensor | None:
        """Accumulated gradient."""
        if self.accumulator is None or not self.accumulator.count:
            return None
        return LowPrecisionTensor(self.accumulator.total, self.dtype)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if self.accumulating() is None and value is None:
            return
        if self.accumulator is None:
            raise BadValueError("this low-precision parameter has no gradient accumulator")
        if isinstance(value, LowPrecisionTensor) and value.codes is self.accumulator.total:
            return
        if value is None:
            self.accumulator.clear()
            return
        self.accumulator.count = 0
        self.accumulator.add(value)

    def encode(self, values: Tensor) -> None:
        """Quantize `values`, to the nearest code; those that the codes stand for change nothing."""
        values = values.detach()
        if torch.equal(self.decode(), values):
            return
        self.write(nearest(values, self.codes.quantizer))

    def write(self, codes: QuantizedTensor) -> None:
        """Copy codes and scales of the same quantizer and shape into these codes."""
        changed = False
        for target, part in zip(memory_of(self.codes), memory_of(codes), strict=True):
            if not torch.equal(target, part.to(target.device)):
                target.copy_(part)
                changed = True
        self.writes += changed

    def stepped(self, step: int) -> None:
        """Record a step of an optimizer, which has written the codes."""
        self.writes += 1
        if self.accumulator is not None:
            self.accumulator.step = step

    @classmethod
    def call(cls, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call `func` with parameters decoded once, which stay in autograd's graph."""
        weights: dict[int, tuple[LowPrecisionParameter, Tensor]] = {}

        def opened(t: LowPrecisionTensor) -> Tensor:
            if not isinstance(t, LowPrecisionParameter):
                return t.decode()
            if id(t) not in weights:
                weights[id(t)] = t, t._in_graph()
            return weights[id(t)][1]

        plain, plain_named = decoded(args, opened), decoded(named, opened)
        if not any(weight.requires_grad for _, weight in weights.values()):
            return func(*plain, **plain_named)
        with _saving_codes(weights.values()):
            return func(*plain, **plain_named)

    def _in_graph(self) -> Tensor:
        if torch.is_grad_enabled() and self.accumulating() is not None and self.requires_grad:
            _refuse_replicas()
            values: Tensor = _Decode.apply(self)  # type: ignore[no-untyped-call]
            return values
        return self.decode()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copy = super().__deepcopy__(memo)
        copy.__dict__.update(
            {key: value for key, value in self.__dict__.items() if key not in copy.__dict__}
        )
        copy.thawed = self.thawed
        if self.accumulator is not None:
            copy.accumulator = self.accumulator.copy(copy)
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        about = super().__reduce_ex__(protocol)
        if self.thawed is None:
            return about
        grads, seed, number = self.thawed
        step = None if self.accumulator is None else self.accumulator.step
        return _rebuilt, (*about[1], described(grads), seed, number, step)


def _rebuilt(
    cls: type[LowPrecisionParameter],
    plain: dict[str, Any],
    dtype: torch.dtype,
    requires_grad: bool,
    grads: str | dict[str, Any],
    seed: int,
    number: int,
    step: int | None,
) -> LowPrecisionParameter:
    codes = from_plain(plain)
    param = cls(codes, dtype, requires_grad)
    # Version 0.3 has the spec alone.
    param.thawed = quantizer_in({"spec": grads} if isinstance(grads, str) else grads), seed, number
    if step is not None:
        param.accumulator = Accumulator(param.thawed[0], param, seed, number)
        param.accumulator.step = step
    return param


def _refuse_replicas() -> None:
    """Raise within the forward of replicas whose gradients nobody would average."""
    replica: Any = getattr(nn.parallel.DistributedDataParallel, "_active_ddp_module", None)
    if replica is not None and (count := replica.process_group.size()) > 1:
        raise BadValueError(
            "DistributedDataParallel does not see the gradients of low-precision parameters, so "
            f"its {count} replicas would diverge; train a converted model in one process"
        )


class _Decode(torch.autograd.Function):
    """Codes to values; back, values' gradients into the accumulator."""

    @staticmethod
    def forward(ctx: Any, param: LowPrecisionParameter) -> Tensor:
        ctx.param = param
        return param.decode()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> None:
        ctx.param.accumulator.add(grad)


class _Saved(NamedTuple):
    """Saved tensor of autograd: the view to take once it is decoded again."""

    param: LowPrecisionParameter
    writes: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _saving_codes(torch.autograd.graph.saved_tensors_hooks):  # noqa: N801 - as its base
    """Within the block autograd saves codes in place of these decoded parameters.

    Everything else it saves goes to the hooks around it, such as those of
    `torch.utils.checkpoint`.
    """

    def __init__(self, weights: Any) -> None:
        by_storage = {
            weight.untyped_storage().data_ptr(): param
            for param, weight in weights
            if weight.numel()
        }
        outer = _outer_hooks(False)

        def pack(t: Tensor) -> Any:
            plain = type(t) is Tensor and t.layout == torch.strided
            param = by_storage.get(t.untyped_storage().data_ptr()) if plain else None
            if param is not None and t.dtype == param.dtype:
                return _Saved(param, param.writes, t.size(), t.stride(), int(t.storage_offset()))
            return t if outer is None else outer[0](t)

        def unpack(saved: Any) -> Tensor:
            if not isinstance(saved, _Saved):
                restored: Tensor = saved if outer is None else outer[1](saved)
                return restored
            if saved.param.writes != saved.writes:
                raise BadValueError(
                    "a low-precision parameter was changed between forward and backward; the "
                    "backward pass needs its old values"
                )
            if torch.is_grad_enabled():
                raise BadValueError(
                    "create_graph=True is not supported for low-precision parameters, which have "
                    "no second derivatives"
                )
            values = saved.param.decode()
            return values.as_strided(saved.size, saved.stride, saved.offset)

        super().__init__(pack, unpack)
