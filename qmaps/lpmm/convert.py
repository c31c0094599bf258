"""Models with parameters and gradients in low precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from torch import Tensor, nn

from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import FLOATS, Quantizer, quantizer
from qmaps.algebra.saved import from_plain, to_plain
from qmaps.engines.sharding.shards import is_distributed
from qmaps.errors import BadTypeError, BadValueError, QmapsError
from qmaps.lpmm.nearest import nearest
from qmaps.lpmm.parameter import LowPrecisionParameter
from qmaps.maps.fitted import FittedMap
from qmaps.optim.choice import MARK, listed

PARAMS = "B2048/linear0@12s+sr"
GRADS = "B2048/linear0@8s+sr"

CODES = "qmaps_codes"
"""Attribute of a tensor in a model's state_dict: the codes that it was decoded from."""

M = TypeVar("M", bound=nn.Module)


def convert(
    model: M,
    params: str | Quantizer = PARAMS,
    grads: str | Quantizer = GRADS,
    *,
    skip: Sequence[str] = (),
    seed: int = 0,
) -> M:
    """Keep a model's parameters as packed codes and its gradients in low-precision accumulators.

    Every parameter becomes a `LowPrecisionParameter`, which is decoded right before a function of
    torch uses it, in forward and in backward, and dropped right after. Any module works whose
    forward hands its parameters to torch's functions, as torch's own linear, convolution,
    embedding, normalization and attention layers do; tied weights stay tied, and
    `torch.utils.checkpoint` works as before. Buffers stay as they are.

    A ``state_dict`` holds plain tensors of the decoded values, with codes and scales as their
    attribute `qmaps_codes`, which ``torch.save`` and ``copy.deepcopy`` keep. A model converted with
    the same quantizer loads the codes as they are. Other tensors, and values that have changed
    since, are rounded to the nearest code, as they are here. Steps of `LPMMSGD` and `LPMMAdam`
    round as the quantizer says.

    A parameter without ``requires_grad`` gets an accumulator when that is first set.

    ``load_state_dict(assign=True)`` copies into modules that have low-precision parameters.
    `torch.nn.parallel.DistributedDataParallel` over several processes is refused in forward: it
    would not see the gradients.

    Under `torch.autocast` autograd saves the copy in lower precision that autocast makes; that
    copy lives until backward.

    Args:
        model: changed in place, and returned. Move it to its device and dtype first.
        params: quantizer of the parameters, signed, of any width.
        grads: quantizer of the sums of gradients, signed.
        skip: patterns of names of parameters that stay as they are, such as ``"*.norm*.weight"``.
        seed: of the stochastic rounding of gradients.

    Raises:
        BadTypeError: `model` is no module, or a parameter is no float32, float16 or bfloat16, or a
            DTensor.
        BadValueError: a quantizer does not fit, the model is converted already, a pattern matches
            nothing, a layer writes its weights in forward, or a parameter has no values yet.
        NonFiniteError: a parameter holds NaN or infinity.

    Source: LPMM, sections 3 and 5.

    >>> import torch
    >>> model = convert(nn.Linear(64, 64), "B2048/linear0@12s+sr")
    >>> model.weight
    LowPrecisionParameter(QuantizedTensor('B2048/linear0@12s+sr', shape=(64, 64), 6152 bytes))
    >>> model(torch.ones(2, 64)).sum().backward()
    >>> model.weight.grad
    LowPrecisionTensor(QuantizedTensor('B2048/linear0@8s+sr', shape=(64, 64), 4104 bytes))
    """
    if not isinstance(model, nn.Module):
        raise BadTypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    RoundingKey(seed=seed)  # raises on a bad seed
    of_params, of_grads = _checked("params", params), _checked("grads", grads)
    named = dict(model.named_parameters(remove_duplicate=False))  # tied ones by each name
    for pattern in skip:
        if not any(fnmatchcase(name, pattern) for name in named):
            raise BadValueError(
                f"skip names {pattern!r}, which matches no parameter; the parameters are "
                f"{listed(list(named))}"
            )
    skipped = {id(p) for n, p in named.items() if any(fnmatchcase(n, each) for each in skip)}
    _check(model, {n: p for n, p in named.items() if id(p) not in skipped})
    numbers = {id(p): number for number, p in enumerate(model.parameters())}
    made: dict[int, LowPrecisionParameter] = {}
    for module in model.modules():
        own = module._parameters.items()
        converted = {n: p for n, p in own if p is not None and id(p) not in skipped}
        for name, old in converted.items():
            if id(old) not in made:
                made[id(old)] = _made(old, of_params, of_grads, seed, numbers[id(old)])
            module._parameters[name] = None
            # setattr, as recurrent layers keep lists of their own.
            setattr(module, name, made[id(old)])
        if converted:
            module.register_state_dict_post_hook(_save_codes)  # type: ignore[no-untyped-call]
            module.register_load_state_dict_pre_hook(_load_codes)  # type: ignore[no-untyped-call]
    return model


def _save_codes(module: nn.Module, state_dict: Mapping[str, Any], prefix: str, *_: Any) -> None:
    """After a module is saved, attach codes to the decoded values of its parameters."""
    for name, param in module._parameters.items():
        value = state_dict.get(prefix + name)
        if isinstance(param, LowPrecisionParameter) and type(value) is Tensor:
            setattr(value, CODES, to_plain(param.codes.clone()))


def _load_codes(
    module: nn.Module,
    state_dict: Mapping[str, Any],
    prefix: str,
    local_metadata: dict[str, Any],
    *_: Any,
) -> None:
    """Before a module is loaded, take over saved codes; its values are then copied.

    The copy changes nothing if the codes decode to these values.
    """
    local_metadata["assign_to_params_buffers"] = False  # plain tensors would replace the codes
    for name, param in module._parameters.items():
        value = state_dict.get(prefix + name)
        if not isinstance(param, LowPrecisionParameter) or not hasattr(value, CODES):
            continue
        try:
            codes = from_plain(getattr(value, CODES))
        except QmapsError as error:
            raise type(error)(f"{CODES} of {prefix + name!r} in state_dict: {error}") from None
        if (codes.quantizer, codes.shape) == (param.codes.quantizer, param.shape):
            param.write(codes)


def _made(
    old: Tensor, params: Quantizer, grads: Quantizer, seed: int, number: int
) -> LowPrecisionParameter:
    codes = nearest(old.detach(), params, check=True)
    new = LowPrecisionParameter(codes, old.dtype, old.requires_grad)
    new.thawed = grads, seed, number
    if (accumulator := new.accumulating()) is not None and old.grad is not None:
        accumulator.add(old.grad)
    if (mark := getattr(old, MARK, None)) is not None:
        setattr(new, MARK, mark)
    return new


def _checked(option: str, spec: str | Quantizer) -> Quantizer:
    q = quantizer(spec)
    if not q.map.signed:
        raise BadValueError(f"{option}={q.spec!r} is unsigned; expected a signed map")
    if q.low_rank is not None:
        raise BadValueError(
            f"{option}={q.spec!r} has {q.low_rank.spec}; expected a quantizer without "
            "a low-rank part"
        )
    if isinstance(q.map, FittedMap):
        raise BadValueError(
            f"{option}={q.spec!r} is fitted to data; expected a map that is given by a formula"
        )
    return q


def _check(model: nn.Module, named: dict[str, Tensor]) -> None:
    for name, param in named.items():
        if isinstance(param, LowPrecisionParameter):
            raise BadValueError(f"parameter {name!r} is already converted")
        check_initialized(name, param)
        if param.is_meta:
            raise BadValueError(
                f"parameter {name!r} is on the device 'meta' and has no values; convert the model "
                "after they are loaded"
            )
        if is_distributed(param):
            allowed = "only whole parameters can be converted"
            raise BadTypeError(f"parameter {name!r} is a DTensor; {allowed}")
        if param.dtype not in FLOATS:
            allowed = "float32, float16 and bfloat16 can be converted"
            raise BadTypeError(f"parameter {name!r} has dtype {param.dtype}; {allowed}")
    for name, module in model.named_modules():
        if getattr(module, "max_norm", None) is not None and "weight" in module._parameters:
            raise BadValueError(
                f"module {name!r} has max_norm={module.max_norm}, which rewrites its weights in "
                "forward; only max_norm=None can be converted"
            )


def check_initialized(name: str, param: Tensor) -> None:
    """Raise for a parameter of a lazy module that has not seen its input yet."""
    if isinstance(param, nn.UninitializedParameter):
        raise BadValueError(
            f"parameter {name!r} has no shape yet; call the model once so that its lazy modules "
            "see their inputs"
        )
