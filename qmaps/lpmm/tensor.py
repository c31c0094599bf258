"""Tensors stored as packed codes, decoded for each function called with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.algebra.saved import from_plain, to_plain
from qmaps.errors import BadTypeError, BadValueError

METADATA = frozenset(
    {
        "__hash__", "__len__", "_has_compatible_shallow_copy_type", "dim", "element_size",
        "get_device", "is_complex", "is_contiguous", "is_floating_point", "is_inference",
        "is_neg", "is_conj", "is_same_size", "is_signed", "ndimension", "nelement", "numel",
        "register_hook", "register_post_accumulate_grad_hook", "requires_grad_", "retain_grad",
        "size", "storage_offset", "stride", "_is_view", "is_set_to", "sym_size", "sym_numel",
        "sym_stride",
    }
)  # fmt: skip
"""Functions that look at a tensor, or change it, without its elements."""

VALUES = frozenset({"data", "T", "H", "mT", "mH", "real", "imag"})
"""Attributes that hold elements."""

ASSIGNMENTS = frozenset(
    {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__ipow__",
     "__ifloordiv__"}
)  # fmt: skip
"""Operators that write their first argument, as methods that end in one ``_`` do."""
MOVES = frozenset({"to", "cpu", "cuda", "float", "half", "bfloat16", "double", "type"})


class LowPrecisionTensor(Tensor):
    """A tensor of packed codes and scales, decoded for every function called with it.

    What is decoded lives no longer than the function that reads it. A function that writes it in
    place (``copy_``, ``mul_``, ``torch.nn.init``) works on the decoded values, which are then
    quantized again, to the nearest code.

    Args:
        codes: packed codes and scales; shared, not copied.
        dtype: of the decoded values: float32, float16 or bfloat16.
        requires_grad: whether autograd follows it.

    Attributes:
        codes: packed codes and scales.
        stepped_by: the optimizers that step such parameters, which the errors of others name.
    """

    stepped_by: ClassVar[str] = "qmaps.lpmm.LPMMSGD or LPMMAdam"

    codes: QuantizedTensor
    writes: int
    """How often the codes have changed."""

    @staticmethod
    def __new__(
        cls,
        codes: QuantizedTensor,
        dtype: torch.dtype = torch.float32,
        requires_grad: bool = False,
    ) -> Self:
        """A tensor with shape, dtype and device but without elements."""
        self: Self = Tensor._make_wrapper_subclass(
            cls, codes.shape, dtype=dtype, device=codes.device, requires_grad=requires_grad
        )
        self.codes = codes
        self.writes = 0
        return self

    def decode(self) -> Tensor:
        """A new plain tensor of the values."""
        return self.codes.dequantize(dtype=self.dtype)

    def encode(self, values: Tensor) -> None:
        """Quantize `values`, to the nearest code, into these codes."""
        from qmaps.ops import dispatch

        q = self.codes.quantizer
        storage = (self.codes.packed, self.codes.scales)
        dispatch.quantize(values.detach().float(), q.normalizer, q.map, None, storage)
        self.writes += 1

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call `func` with decoded tensors."""
        named = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__":
            if _attribute(func) not in VALUES:
                return _plainly(func, args, named)
        elif name in METADATA:
            return _plainly(func, args, named)
        elif name == "data_ptr":
            return 0  # no elements that live on, so no address of theirs
        elif name == "__set__":
            return _set(func, args, named)
        elif name in MOVES and isinstance(args[0], LowPrecisionTensor):
            return _moved(func, args, named)
        elif name in ASSIGNMENTS if name.startswith("__") else name.endswith("_"):
            return _in_place(func, name, args, named)
        if isinstance(named.get("out"), LowPrecisionTensor):
            message = f"{name} cannot write its result into low-precision codes; use copy_"
            raise BadTypeError(message)
        return cls.call(func, args, named)

    @classmethod
    def call(cls, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call `func` with decoded tensors, without gradients with respect to them.

        Low-precision tensors are decoded at any depth of lists, tuples and dicts.
        """
        return func(*decoded(args), **decoded(named))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Handle operators called by C++ without `__torch_function__`."""
        if func._schema.is_mutable:
            raise BadTypeError(f"{func} cannot write to a {cls.__name__}; use its copy_")
        return func(*decoded(args), **decoded(dict(kwargs or {})))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{type(self).__name__}({self.codes!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copy = type(self)(self.codes.clone(), self.dtype, self.requires_grad)
        memo[id(self)] = copy
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuilt, (type(self), to_plain(self.codes), self.dtype, self.requires_grad)


def decoded(value: Any, decode: Callable[[Any], Tensor] = LowPrecisionTensor.decode) -> Any:
    """`value` with every low-precision tensor in it decoded, at any depth of lists and dicts."""
    if isinstance(value, LowPrecisionTensor):
        return decode(value)
    if type(value) in (list, tuple):
        return type(value)(decoded(member, decode) for member in value)
    if isinstance(value, dict):
        return {key: decoded(member, decode) for key, member in value.items()}
    return value


def _rebuilt(
    cls: type[LowPrecisionTensor], plain: dict[str, Any], dtype: torch.dtype, grad: bool
) -> LowPrecisionTensor:
    return cls(from_plain(plain), dtype, grad)


def _attribute(func: Any) -> str:
    return getattr(getattr(func, "__self__", None), "__name__", "")


def _plainly(func: Callable[..., Any], args: Any, named: dict[str, Any]) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **named)


def _in_place(
    func: Callable[..., Any], name: str, args: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Decode, call `func`, and quantize the values it wrote."""
    target = args[0] if args else next(iter(named.values()))
    written = target if isinstance(target, (list, tuple)) else [target]
    ours = [t for t in written if isinstance(t, LowPrecisionTensor)]
    if torch.is_grad_enabled() and any(t.requires_grad for t in ours):
        raise BadValueError(
            f"{name} writes to a low-precision parameter that requires gradients; call it under "
            "torch.no_grad()"
        )
    with torch.no_grad():
        # Each is decoded once, so that what is written is what is kept.
        plain = {id(t): t.decode() for t in ours}

        def opened(t: LowPrecisionTensor) -> Tensor:
            return plain[id(t)] if id(t) in plain else t.decode()

        result = func(*decoded(args, opened), **decoded(named, opened))
        for t in ours:
            t.encode(plain[id(t)])
    return target if name != "__setitem__" and result is not None else result


def _set(func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """An assignment to an attribute; to `data` it quantizes."""
    if _attribute(func) != "data":
        return _plainly(func, args, named)
    target, value = args
    if not isinstance(target, LowPrecisionTensor):
        raise BadTypeError(
            f"the data of a {type(target).__name__} cannot be replaced by low-precision codes"
        )
    if value is not target:
        with torch.no_grad():
            target.copy_(value)
    return None


def _moved(func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """A conversion: for a parameter in a module it must change nothing."""
    self: LowPrecisionTensor = args[0]
    like = torch.empty(0, dtype=self.dtype, device=self.device)
    target = func(like, *args[1:], **named)
    in_module = getattr(self, "_is_param", False)
    if not isinstance(target, Tensor) or not in_module:
        return func(self.decode(), *args[1:], **named)
    if (target.dtype, target.device) == (self.dtype, self.device):
        return self
    if torch.is_grad_enabled():
        return type(self).call(func, args, named)
    raise BadValueError(
        f"a low-precision parameter of {self.dtype} on {self.device} cannot become {target.dtype} "
        f"on {target.device}; move the model first and convert it then"
    )
