"""Steps in the backward pass, which free each gradient as soon as it is used."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from qmaps.engines.sharding.shards import is_distributed, is_flat
from qmaps.errors import BadTypeError, BadValueError, shown
from qmaps.optim.base import QuantizedOptimizer
from qmaps.optim.records import Place, places
from qmaps.optim.rule import check_above_0
from qmaps.optim.stepper import Stepper

_RELEASES: weakref.WeakSet[GradientRelease] = weakref.WeakSet()
"""All releases; parameters have no attribute for theirs, so that models can be pickled."""


VALUES = ("data", "T", "mT", "H", "mH", "real", "imag")
"""Attributes of a tensor that read its values."""
ABOUT = (
    "__dir__", "__dlpack_device__", "__len__", "_clear_non_serializable_cached_data",
    "_is_view", "_is_zerotensor", "dense_dim", "dim", "dim_order", "element_size",
    "get_device", "is_complex", "is_conj", "is_contiguous", "is_distributed",
    "is_floating_point", "is_inference", "is_neg", "is_pinned", "is_same_size", "is_shared",
    "is_signed", "ndimension", "nelement", "numel", "register_hook",
    "register_post_accumulate_grad_hook", "requires_grad_", "retain_grad", "size",
    "sparse_dim", "storage_offset", "storage_type", "stride", "empty_like", "full_like",
    "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like",
)  # fmt: skip
"""Methods of a tensor, and functions of one, that read no values."""


def release_gradients(
    model: nn.Module,
    optimizer: QuantizedOptimizer,
    *,
    clip_value: float | None = None,
    scaler: torch.amp.GradScaler | None = None,
) -> GradientRelease:
    """Step each parameter in the backward pass, and free its gradient.

    As soon as the gradient of a parameter is complete, the optimizer steps this parameter, and
    its gradient is None again. The training loop stays as it is: ``optimizer.step()`` ends the
    step, and the next backward pass may begin. Parameters and states have the bits of the plain
    loop, and the state dict is the optimizer's own.

    Options of the optimizer, such as `lr`, are read during the backward pass. Code that runs in the
    backward pass, such as a segment that activation checkpointing computes again, must not read
    parameters that have taken their step: it would see the new values.

    Args:
        model: the model with the optimizer's parameters. Several optimizers, such as Muon for
            matrices and AdamW for the others, each have a call of their own.
        optimizer: an optimizer of `qmaps.optim` that steps each parameter by itself.
        clip_value: clip gradients to [-clip_value, clip_value], above 0, as
            `torch.nn.utils.clip_grad_value_` does. Clipping by norm needs all gradients at once.
        scaler: the gradient scaler of the training, if it has one. A parameter whose gradient
            holds NaN or infinity skips its step, and the others take theirs: by the time that an
            overflow is seen, other parameters have been stepped. ``scaler.update()`` lowers the
            scale as usual. ``scaler.step(optimizer)`` may stand for ``optimizer.step()``.

    Returns:
        The release; its `remove` ends it.

    Raises:
        BadTypeError: an argument has another type, the optimizer needs all gradients at once, a
            parameter is sharded, or the model has a DistributedDataParallel.
        BadValueError: an option or a parameter is not allowed, or several processes train
            together. In the backward pass: a parameter has taken its step already, because
            ``optimizer.step()`` was not called since the last backward pass, or is read after its
            step. In ``optimizer.step()``: a parameter has a gradient. In ``load_state_dict``: the
            checkpoint has an option that is not allowed.

    >>> import torch
    >>> from qmaps.optim import AdamW4bit, release_gradients
    >>> model = torch.nn.Linear(256, 256)
    >>> optimizer = AdamW4bit(model.parameters(), lr=1e-3)
    >>> release = release_gradients(model, optimizer)
    >>> model(torch.randn(8, 256)).square().mean().backward()
    >>> model.weight.grad, int(optimizer.state[model.weight]["step"])
    (None, 1)
    >>> optimizer.step()
    >>> release.remove()
    """
    _check(model, optimizer)
    if clip_value is not None:
        check_above_0({"clip_value": clip_value}, "clip_value")
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        raise BadTypeError(f"scaler={shown(scaler)} must be a torch.amp.GradScaler or None")
    return GradientRelease(model, optimizer, clip_value, scaler)


class GradientRelease:
    """Steps of one optimizer in the backward pass; `release_gradients` makes it.

    The optimizer keeps it alive. It ends with the optimizer, or by `remove`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: QuantizedOptimizer,
        clip_value: float | None,
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._clip_value, self._scaler = clip_value, scaler
        self._names: dict[Tensor, str] = {param: name for name, param in model.named_parameters()}
        found = _Places()
        self._steps = {param: _OneStep(optimizer, param, found) for param in _trained(optimizer)}
        self._stepped: set[Tensor] = set()
        self._hooks = [
            optimizer.register_step_pre_hook(lambda *_: self._before_end()),
            optimizer.register_step_post_hook(lambda *_: self._stepped.clear()),
            optimizer.register_load_state_dict_pre_hook(lambda _, saved: _check_saved(saved)),
        ]
        _RELEASES.add(self)
        # A reference from autograd to the optimizer would keep both forever.
        alive = weakref.WeakMethod(self.step)

        def hook(param: Tensor) -> None:
            if (step := alive()) is not None:
                step(param)

        for param in self._steps:
            self._hooks.append(param.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]
        optimizer._released = True

    def remove(self) -> None:
        """End the release: gradients stay until ``optimizer.step()``; may be called twice."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        _allow_reads(self._stepped)
        self._steps = {}
        if (optimizer := self._optimizer()) is not None:
            optimizer._released = False

    @torch.no_grad()
    def step(self, param: Tensor) -> None:
        """Take the step of a parameter, and free its gradient."""
        one = self._steps[param]
        try:
            if param in self._stepped:
                raise BadValueError(
                    f"{self._label(param)} has a second gradient before optimizer.step(); "
                    "release_gradients steps in every backward pass and cannot accumulate "
                    "gradients: call optimizer.step() after each, or remove() the release"
                )
            self._stepped.add(param)
            if self._scaler is not None:
                self._scaler.unscale_(one)  # type: ignore[arg-type]
            if self._clip_value is not None:
                nn.utils.clip_grad_value_(param, float(self._clip_value))
            if self._scaler is None:
                one.step()
            else:
                self._scaler.step(one)  # type: ignore[arg-type]
            # Autograd refuses what reads the values from before the step.
            torch.autograd.graph.increment_version(param)
        finally:
            param.grad = None
        # Autograd does not see what segments that are computed again read.
        param.__class__ = _unreadable(type(param))

    def _before_end(self) -> None:
        """Raise where a backward pass was not what the release expects."""
        optimizer = self._optimizer()
        _allow_reads(self._stepped)
        if self._scaler is None and getattr(optimizer, "grad_scale", None) is not None:
            raise BadValueError(
                "release_gradients has taken steps with gradients that a GradScaler has scaled; "
                "pass it as release_gradients(model, optimizer, scaler=scaler)"
            )
        groups = [] if optimizer is None else optimizer.param_groups
        for param in (param for group in groups for param in group["params"]):
            if param.grad is None:
                continue
            if param in self._steps:
                raise BadValueError(
                    f"{self._label(param)} has a gradient again after its step in the backward "
                    "pass; set it to None, or remove() the release"
                )
            raise BadValueError(
                f"{self._label(param)} was added or unfrozen after release_gradients; call "
                "remove() and release_gradients again"
            )

    def _label(self, param: Tensor) -> str:
        name = self._names.get(param)
        return "a parameter" if name is None else f"parameter {name!r}"


class _Places:
    """The places of an optimizer's parameters, listed once for all steps."""

    def __init__(self) -> None:
        self._listed: tuple[list[int], dict[Tensor, list[Place]]] = [], {}

    def of(self, param: Tensor, groups: list[dict[str, Any]]) -> list[Place]:
        """The places of a parameter; those of all are listed anew if groups have changed."""
        sizes = [len(group["params"]) for group in groups]
        listed_sizes, by_param = self._listed
        here = by_param.get(param, [])
        if not here or sizes != listed_sizes or any(_at(at, groups) is not param for at in here):
            by_param = {}
            for place in places(groups):
                by_param.setdefault(_at(place, groups), []).append(place)
            # At once: hooks of parameters on other devices run in other threads.
            self._listed = sizes, by_param
        return by_param.get(param, [])


def _at(place: Place, groups: list[dict[str, Any]]) -> Tensor:
    param: Tensor = groups[place.group]["params"][place.position]
    return param


class _OneStep:
    """The step of one parameter, in the form of an optimizer, as gradient scalers take it."""

    def __init__(self, optimizer: QuantizedOptimizer, param: Tensor, places: _Places) -> None:
        self.param_groups = [{"params": [param]}]
        self._param, self._places = param, places
        self._optimizer = weakref.ref(optimizer)
        self._stepper = Stepper(optimizer.native_rule)

    def step(self) -> None:
        """Take it."""
        if (optimizer := self._optimizer()) is not None:
            only = self._places.of(self._param, optimizer.param_groups)
            for place in only:
                if optimizer.param_groups[place.group]["nonfinite"] != "propagate":
                    _check_policy(optimizer.param_groups)
            self._stepper.step(optimizer._parameters, only=only)


def _trained(optimizer: QuantizedOptimizer) -> list[Tensor]:
    """Parameters of an optimizer that are not frozen; each once."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    return [param for param in dict.fromkeys(params) if param.requires_grad]


def _check(model: nn.Module, optimizer: QuantizedOptimizer) -> None:
    """Raise unless the optimizer can step parameters of the model in the backward pass."""
    if not isinstance(model, nn.Module):
        raise BadTypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    kind = type(optimizer).__name__
    if not isinstance(optimizer, QuantizedOptimizer):
        raise BadTypeError(f"optimizer must be one of qmaps.optim, got {kind}")
    for refused, why in (
        (optimizer._steps_codes, "keeps gradients as codes"),
        (optimizer.takes_all_gradients, "needs all gradients at once"),
    ):
        if refused:
            raise BadTypeError(f"release_gradients does not support {kind}, which {why}")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        count = torch.distributed.get_world_size()
        if count > 1:
            raise BadValueError(
                f"release_gradients supports one process, got {count}: steps would be taken before "
                "the gradients of all processes are averaged"
            )
    if any(isinstance(module, nn.parallel.DistributedDataParallel) for module in model.modules()):
        raise BadTypeError(
            "release_gradients does not support DistributedDataParallel, which writes gradients "
            "back after each step; train the module without it"
        )
    _check_policy(optimizer.param_groups)
    names: dict[Tensor, str] = {param: name for name, param in model.named_parameters()}
    for number, param in enumerate(_trained(optimizer)):
        if param not in names:
            raise BadValueError(
                f"parameter number {number} of the optimizer is not a parameter of the model"
            )
        if is_distributed(param) or is_flat(param):
            raise BadTypeError(
                f"parameter {names[param]!r} is sharded; release_gradients needs whole parameters"
            )
        for other in _RELEASES:
            if param in other._steps and (owner := other._optimizer()) is not None:
                raise BadValueError(
                    f"parameter {names[param]!r} is released to a {type(owner).__name__} already; "
                    "call remove() of that release first"
                )


def _check_policy(groups: Iterable[Mapping[str, Any]], source: str = "") -> None:
    """Raise if the policy for NaN and infinity needs all gradients at once."""
    for group in groups:
        if (policy := group.get("nonfinite", "propagate")) != "propagate":
            raise BadValueError(
                f"{source}nonfinite={shown(policy)} looks at all gradients before a step; "
                "release_gradients supports nonfinite='propagate'"
            )


def _check_saved(state_dict: Any) -> None:
    """Raise if a checkpoint has options that a release does not support."""
    groups = state_dict.get("param_groups") if isinstance(state_dict, Mapping) else None
    if isinstance(groups, (list, tuple)):  # others are refused by what loads them
        _check_policy((g for g in groups if isinstance(g, Mapping)), "state_dict has ")


class _Unreadable:
    """Mixin of the class of a parameter from its step on.

    In the backward pass it refuses operations that read values. The first operation after the
    backward pass, or ``optimizer.step()``, gives the parameter its own class back.
    """

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        _: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        stepped: list[Any] = [x for x in tree_leaves((args, kwargs)) if isinstance(x, _Unreadable)]
        if torch._C._current_graph_task_id() == -1:
            _allow_reads(stepped)
            return function(*args, **kwargs)
        if _reads(function):
            label = next((r._label(p) for r in _RELEASES for p in stepped if p in r._steps), "")
            raise BadValueError(
                f"{label or 'a parameter'} is read in the backward pass after its step by "
                "release_gradients, as by a segment that activation checkpointing computes again; "
                "read it outside of the segment, or remove() the release"
            )
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs)


@cache
def _unreadable(cls: type[Tensor]) -> type[Tensor]:
    """The subclass of a parameter's class that refuses to be read."""
    make: Any = type(cls)
    made: type[Tensor] = make(cls.__name__, (_Unreadable, cls), {"_own_class": cls})
    return made


def _allow_reads(params: Iterable[Tensor]) -> None:
    """Give parameters their own classes back."""
    for param in params:
        param.__class__ = getattr(type(param), "_own_class", type(param))


def _reads(function: Any) -> bool:
    """Return True if an operation of torch reads values of a tensor."""
    name = getattr(function, "__name__", "")
    if name in ("__get__", "__set__", "__delete__"):  # of an attribute
        attribute = getattr(getattr(function, "__self__", None), "__name__", "")
        return name == "__get__" and attribute in VALUES
    return name not in ABOUT
