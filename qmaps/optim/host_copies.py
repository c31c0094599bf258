"""Copies of a GPU's parameters in the CPU's memory, for `qmaps.optim.offload`."""

from __future__ import annotations

import torch
from torch import Tensor


class HostCopy:
    """A parameter's copy on the CPU, and the transfers between both.

    Transfers of CUDA tensors are asynchronous, by page-locked memory. Those to the CPU run on a
    stream of their own, so that they overlap with the backward pass; `wait` waits for them. Those
    to the GPU run on the current stream, before whatever is launched next.

    Args:
        device_param: the parameter.

    Attributes:
        param: the copy, a leaf tensor of the same shape and dtype that requires a gradient if the
            parameter does.
    """

    def __init__(self, device_param: Tensor) -> None:
        self._device_param = device_param
        self._stream = _side_stream(device_param.device)
        self._buffer: Tensor | None = None
        # The memory of a frozen parameter's copy is never written, so it takes none.
        values = self._empty(device_param, pinned=device_param.requires_grad)
        self.param = torch.nn.Parameter(values, requires_grad=device_param.requires_grad)
        self.param.grad_dtype = None  # any, as that of the parameter may change

    def fetch_values(self) -> None:
        """Copy the parameter's values, which other code may have changed since the last step."""
        self._to_host(self._device_param.detach(), self.param.detach())

    def fetch_gradient(self) -> None:
        """Copy the parameter's gradient, or remove the copy's if there is none."""
        grad = self._device_param.grad
        self.param.grad = None if grad is None else self._grad_on_host(grad)

    def take_gradient(self) -> None:
        """Move the parameter's gradient to the CPU, and add it to the one that is there."""
        grad = self._device_param.grad
        self._device_param.grad = None
        if grad is None:
            return
        if self.param.grad is None:
            self.param.grad = self._grad_on_host(grad)
        else:
            self.wait()
            self.param.grad += grad.to("cpu")

    def wait(self) -> None:
        """Wait until all transfers to the CPU are done."""
        if self._stream is not None:
            self._stream.synchronize()

    def send_values(self) -> None:
        """Copy the values to the parameter."""
        self._device_param.copy_(self.param.detach(), non_blocking=True)

    def _grad_on_host(self, grad: Tensor) -> Tensor:
        if grad.layout != torch.strided:
            return grad.to("cpu")  # optimizers refuse sparse gradients with their own message
        if self._buffer is None or self._buffer.dtype != grad.dtype:
            self._buffer = self._empty(grad)
        self._to_host(grad, self._buffer)
        return self._buffer

    def _to_host(self, source: Tensor, target: Tensor) -> None:
        if self._stream is None:
            target.copy_(source)
            return
        self._stream.wait_stream(torch.cuda.current_stream(source.device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        source.record_stream(self._stream)

    def _empty(self, like: Tensor, *, pinned: bool = True) -> Tensor:
        pin = pinned and self._stream is not None
        return torch.empty_like(like.detach(), device="cpu", pin_memory=pin)


_STREAMS: dict[torch.device, torch.cuda.Stream] = {}


def _side_stream(device: torch.device) -> torch.cuda.Stream | None:
    """The stream of transfers from a CUDA device to the CPU; None for other devices."""
    if device.type != "cuda":
        return None
    if device not in _STREAMS:
        _STREAMS[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return _STREAMS[device]
