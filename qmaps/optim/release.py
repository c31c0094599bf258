"""Steps in the backward pass, which free each gradient as soon as it is used."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from qmaps.engines.sharding.shards import is_distributed, is_flat
from qmaps.errors import BadTypeError, BadValueError, shown
from qmaps.optim.base import QuantizedOptimizer
from qmaps.optim.records import Place, places
from qmaps.optim.rule import check_above_0
from qmaps.optim.stepper import Stepper

_RELEASES: weakref.WeakSet[GradientRelease] = weakref.WeakSet()
"""All releases; parameters have no attribute for theirs, so that models can be pickled."""


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

    Options of the optimizer, such as `lr`, are read during the backward pass.

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
            ``optimizer.step()`` was not called since the last backward pass. In
            ``optimizer.step()``: a parameter has a gradient.

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

    def _before_end(self) -> None:
        """Raise where a backward pass was not what the release expects."""
        optimizer = self._optimizer()
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
    for group in optimizer.param_groups:
        if group["nonfinite"] != "propagate":
            raise BadValueError(
                f"nonfinite={group['nonfinite']!r} looks at all gradients before a step; "
                "release_gradients supports nonfinite='propagate'"
            )
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
