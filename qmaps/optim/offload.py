"""Optimizers on the CPU for parameters on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, overload

import torch
from torch import Tensor

from qmaps.engines.sharding.shards import is_distributed
from qmaps.errors import BadTypeError, shown
from qmaps.optim.adamw import AdamW8bit
from qmaps.optim.choice import MARK, keep_in_32_bits
from qmaps.optim.rule import loss_of
from qmaps.optim.saved_states import load_with_hooks, save_with_hooks

_NAMES = "param_names"


class CPUOffloadOptimizer(torch.optim.Optimizer):
    """Keeps the states of an optimizer in the CPU's memory and takes its steps there.

    The GPU holds parameters and gradients only. A step copies the gradients to the CPU, steps
    copies of the parameters there, and copies the new parameters back. The results have the same
    bits as a step of `optimizer_class` on the CPU.

    Learning-rate schedulers, gradient clipping and gradient accumulation work as with any
    optimizer. `state_dict` is that of `optimizer_class`: a checkpoint can be loaded with
    and without offloading. Each step copies the parameters to the CPU as well, to start
    from the values of the model even if other code has changed them.

    Parameters sharded by ``fully_shard`` need no such class: shard them with
    ``offload_policy=CPUOffloadPolicy()`` and construct the optimizer as usual.

    Args:
        params: parameters, named parameters or parameter groups, as for `optimizer_class`.
        optimizer_class: the optimizer, of `qmaps.optim` or of torch.
        **kwargs: options of `optimizer_class`, such as `lr`.

    Raises:
        BadTypeError: `optimizer_class` is not a class of optimizers, is one of `Prodigy` or
            `AdamWScheduleFree`, whose methods change options, or a parameter is sharded.
        BadValueError, BadTypeError: an option is refused by `optimizer_class`.

    Attributes:
        host_optimizer: the optimizer of the copies. Its `memory` shows the states, and
            `qmaps.Monitor` accepts it.

    >>> import torch
    >>> from qmaps.optim import AdamW8bit, CPUOffloadOptimizer
    >>> model = torch.nn.Linear(256, 256)  # on a GPU
    >>> optimizer = CPUOffloadOptimizer(model.parameters(), AdamW8bit, lr=1e-3)
    >>> model(torch.randn(4, 256)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.state[model.weight]["exp_avg"]
    QuantizedTensor('B256/DE-sym@8s', shape=(256, 256), 66560 bytes)
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[torch.optim.Optimizer] = AdamW8bit,
        **kwargs: Any,
    ) -> None:
        if not (
            isinstance(optimizer_class, type)
            and issubclass(optimizer_class, torch.optim.Optimizer)
            and not issubclass(optimizer_class, CPUOffloadOptimizer)
        ):
            raise BadTypeError(
                "optimizer_class must be a class of optimizers, such as qmaps.optim.AdamW8bit, got "
                f"{shown(optimizer_class)}"
            )
        if getattr(optimizer_class, "_changes_options", False):
            raise BadTypeError(
                f"CPUOffloadOptimizer does not support {optimizer_class.__name__}, whose methods "
                "change options of the parameter groups"
            )
        self._copies: dict[Tensor, HostCopy] = {}
        super().__init__(params, {})
        self.host_optimizer = optimizer_class(
            [self._host_group(group) for group in self.param_groups], **kwargs
        )
        self.defaults = self.host_optimizer.defaults
        self._take_options()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group."""
        super().add_param_group(param_group)
        if not hasattr(self, "host_optimizer"):  # while this one is constructed
            return
        before = dict(self._copies)
        try:
            self.host_optimizer.add_param_group(self._host_group(self.param_groups[-1]))
        except Exception:
            self.param_groups.pop()
            self._copies = before
            raise
        self._take_options()

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step.

        Args:
            closure: evaluates the model anew and returns the loss.
        """
        loss = loss_of(closure)
        self._give_options()
        for copy in self._copies.values():
            copy.fetch_gradient()
        stepping = [copy for copy in self._copies.values() if copy.param.grad is not None]
        for copy in stepping:
            copy.fetch_values()
        for copy in stepping:
            copy.wait()
        self.host_optimizer.step()
        for copy in stepping:
            copy.send_values()
        self._share_states()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of the parameters and of their copies."""
        super().zero_grad(set_to_none)
        self.host_optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The state_dict of `host_optimizer`."""
        return save_with_hooks(self, self._saved)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state_dict of `optimizer_class`, whether it ran on the CPU or on a GPU."""
        load_with_hooks(self, state_dict, self._load)

    def _saved(self) -> dict[str, Any]:
        self._give_options()
        return self.host_optimizer.state_dict()

    def _load(self, saved: Any) -> None:
        self.host_optimizer.load_state_dict(saved)
        self._take_options()
        self.state.clear()
        self._share_states()

    def __getstate__(self) -> NoReturn:
        raise BadTypeError("a CPUOffloadOptimizer cannot be copied or pickled; use its state_dict")

    def _host_group(self, group: dict[str, Any]) -> dict[str, Any]:
        """A group of `host_optimizer`, with copies of the parameters."""
        for param in group["params"]:
            if is_distributed(param):
                raise BadTypeError(
                    "params has a sharded parameter (DTensor); call fully_shard with "
                    "offload_policy=CPUOffloadPolicy() and construct the optimizer without "
                    "CPUOffloadOptimizer"
                )
            if param not in self._copies:
                copy = self._copies[param] = HostCopy(param)
                if (mark := getattr(param, MARK, None)) is not None:
                    keep_in_32_bits(copy.param, mark)
        # A parameter that is listed twice steps twice, as in torch.
        copies = [self._copies[param].param for param in group["params"]]
        named = zip(group[_NAMES], copies, strict=True) if _NAMES in group else copies
        options = {key: value for key, value in group.items() if key != _NAMES}
        return {**options, "params": list(named)}

    def _give_options(self) -> None:
        """Give `host_optimizer` the options of the groups; schedulers change them."""
        for group, host in zip(self.param_groups, self.host_optimizer.param_groups, strict=True):
            host.update(
                {key: value for key, value in group.items() if key not in ("params", _NAMES)}
            )

    def _take_options(self) -> None:
        """Take all options of `host_optimizer`, its defaults included, into the groups."""
        for group, host in zip(self.param_groups, self.host_optimizer.param_groups, strict=True):
            group.update({key: value for key, value in host.items() if key != "params"})

    def _share_states(self) -> None:
        """Let `state` hold the states of the copies under the parameters."""
        for param, copy in self._copies.items():
            if copy.param in self.host_optimizer.state:
                self.state[param] = self.host_optimizer.state[copy.param]


class HostCopy:
    """A parameter's copy on the CPU, `param`, and the transfers between both.

    Transfers of CUDA tensors are asynchronous, by page-locked memory and on the current stream;
    `wait` waits for them.
    """

    def __init__(self, device_param: Tensor) -> None:
        self._device_param = device_param
        self._on_cuda = device_param.is_cuda
        self._buffer: Tensor | None = None
        # The memory of a frozen parameter's copy is never written, so it takes none.
        values = self._empty(device_param, pinned=device_param.requires_grad)
        self.param = torch.nn.Parameter(values, requires_grad=device_param.requires_grad)
        self.param.grad_dtype = None  # any, as that of the parameter may change

    def fetch_values(self) -> None:
        """Copy the parameter's values; other code may have changed them since the last step."""
        self.param.detach().copy_(self._device_param.detach(), non_blocking=self._on_cuda)

    def fetch_gradient(self) -> None:
        """Copy the parameter's gradient, or remove the copy's if there is none."""
        grad = self._device_param.grad
        if grad is not None and grad.layout != torch.strided:
            grad = grad.to("cpu")  # optimizers refuse sparse gradients with their own message
        elif grad is not None:
            if self._buffer is None or self._buffer.dtype != grad.dtype:
                self._buffer = self._empty(grad)
            grad = self._buffer.copy_(grad, non_blocking=self._on_cuda)
        self.param.grad = grad

    def wait(self) -> None:
        """Wait until all transfers are done."""
        if self._on_cuda:
            torch.cuda.current_stream(self._device_param.device).synchronize()

    def send_values(self) -> None:
        """Copy the values to the parameter."""
        self._device_param.copy_(self.param.detach(), non_blocking=True)

    def _empty(self, like: Tensor, *, pinned: bool = True) -> Tensor:
        pin = pinned and self._on_cuda
        return torch.empty_like(like.detach(), device="cpu", pin_memory=pin)
