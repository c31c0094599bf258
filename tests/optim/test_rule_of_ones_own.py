"""Optimizers of users, with states declared by them."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from qmaps.engines.step import Context
from qmaps.optim import QuantizedOptimizer, State
from qmaps.optim.records import states_of


class Signed(QuantizedOptimizer):
    """Momentum with a start from an option, and a number for each parameter."""

    states: ClassVar[dict[str, State]] = {
        "average": State(signed=True, initial="start"),
        "steps": State(exact=True, initial=1.5, dims=lambda _: ()),
    }

    def __init__(self, params: Any, lr: float = 0.1, start: float = 0.25, **shared: Any) -> None:
        super().__init__(params, {"lr": lr, "start": start}, **shared)

    def step_scalars(self, group: dict[str, Any]) -> dict[str, Any]:
        return {"lr": float(group["lr"])}

    def state_shapes(self, param: Tensor, group: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        return super().state_shapes(param, group) | {"steps": ()}

    def advance(
        self,
        context: Context,
        param: Tensor,
        grad: Tensor,
        states: dict[str, Tensor],
        scalars: dict[str, float],
    ) -> None:
        states["average"].mul_(0.5).add_(grad * 0.5)
        states["steps"].add_(1)
        param.sub_(states["average"] * scalars["lr"] * (context.number + context.step))


def test_states_are_as_declared() -> None:
    params = [nn.Parameter(torch.zeros(100, 50)) for _ in range(2)]
    optimizer = Signed(params, state_quantizers="8bit")
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    first, second = params
    q = optimizer.state[first]["average"]
    assert q.quantizer.spec == "B256/DE-sym@8s"
    assert torch.allclose(q.dequantize(), torch.tensor(0.625), atol=1e-3)  # 0.25 / 2 + 1 / 2
    assert optimizer.state[first]["steps"].shape == ()
    assert float(optimizer.state[first]["steps"]) == 2.5
    assert torch.allclose(first, torch.tensor(-0.0625))
    assert torch.allclose(second, 2 * first)  # the number of the parameter counts
    assert (Signed.state_names, Signed.signed_states, Signed.exact_states) == (
        ("average", "steps"),
        {"average"},
        {"steps"},
    )
    assert states_of(optimizer, optimizer.param_groups[0]) == ("average", "steps")
    again = Signed(params)
    again.load_state_dict(optimizer.state_dict())
    assert float(again.state[first]["steps"]) == 2.5
