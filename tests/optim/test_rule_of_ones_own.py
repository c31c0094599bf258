"""Optimizers of one's own: the states that they declare, as version 0.2 and as 0.1 wanted them."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from qmaps.engines.step import Context
from qmaps.errors import BadTypeError
from qmaps.optim import Adagrad, AdamW, QuantizedOptimizer, State


class Signed(QuantizedOptimizer):
    """Momentum that starts from an option, and a number of its own for each parameter."""

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
    assert q.quantizer.spec == "B256/DE@8s"
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
    assert optimizer.states_of(optimizer.param_groups[0]) == ("average", "steps")
    again = Signed(params)
    again.load_state_dict(optimizer.state_dict())
    assert float(again.state[first]["steps"]) == 2.5


def test_a_rule_as_version_0_1_declared_it_still_works() -> None:
    with pytest.warns(DeprecationWarning, match=r"Old defines state_names, .*initial, states_of"):

        class Old(QuantizedOptimizer):
            state_names: ClassVar[tuple[str, ...]] = ("average", "exact", "unused")
            signed_states: ClassVar[frozenset[str]] = frozenset({"average"})
            exact_states: ClassVar[frozenset[str]] = frozenset({"exact"})

            def initial(self, group: dict[str, Any]) -> dict[str, float]:
                return {"exact": group["start"]}

            def states_of(self, group: dict[str, Any]) -> tuple[str, ...]:
                return ("average", "exact")

            def constants(self, group: dict[str, Any]) -> dict[str, Any]:
                return {"lr": float(group["lr"])}

            def update(self, param: Tensor, grad: Tensor, states: Any, scalars: Any) -> None:
                states["average"].add_(grad)
                states["exact"].add_(grad)
                param.sub_(states["average"] * scalars["lr"])

    param = nn.Parameter(torch.ones(100, 50))
    optimizer = Old([param], {"lr": 0.5, "start": 3.0}, state_quantizers="8bit")
    param.grad = torch.ones_like(param)
    optimizer.step()
    assert math.isclose(float(param.detach().mean()), 0.5, rel_tol=1e-3)
    assert optimizer.state[param]["average"].quantizer.spec == "B256/DE@8s"
    assert torch.equal(optimizer.state[param]["exact"], torch.full((100, 50), 4.0))
    assert "unused" not in optimizer.state[param]


def test_single_members_of_version_0_1_still_work() -> None:
    with pytest.warns(DeprecationWarning, match=r"Exact defines exact_states; .*State\(exact=True"):

        class Exact(AdamW):
            exact_states: ClassVar[frozenset[str]] = frozenset({"exp_avg"})

    with pytest.warns(DeprecationWarning, match="Late defines initial"):

        class Late(Adagrad):
            def initial(self, group: dict[str, Any]) -> dict[str, float]:
                return {"sum": 4.0}

    params = [nn.Parameter(torch.zeros(100, 50)) for _ in range(2)]
    exact, late = Exact(params[:1], state_quantizers="4bit"), Late(params[1:], lr=0.1)
    for param, optimizer in zip(params, (exact, late), strict=True):
        param.grad = torch.ones_like(param)
        optimizer.step()
    assert isinstance(exact.state[params[0]]["exp_avg"], Tensor)
    assert exact.state[params[0]]["exp_avg_sq"].quantizer.spec == "B128/DE-0@4u"
    assert math.isclose(float(params[1].detach().mean()), -0.1 / 5**0.5, rel_tol=1e-3)
    with pytest.warns(DeprecationWarning, match="constants is now step_scalars"):
        assert exact.constants(exact.param_groups[0])["beta1"] == 0.9
    with pytest.warns(DeprecationWarning, match="Slower defines constants"):

        class Slower(AdamW):
            def constants(self, group: dict[str, Any]) -> dict[str, Any]:
                return super().constants(group) | {"eps": 1.0}  # type: ignore[misc]

    slower = Slower(params[:1])
    with pytest.warns(DeprecationWarning, match="constants is now step_scalars"):
        assert slower.step_scalars(slower.param_groups[0])["eps"] == 1.0


def test_advance_as_in_version_0_1_is_refused_by_name() -> None:
    with pytest.raises(BadTypeError, match=r"Old.advance takes .* advance\(self, context, param"):

        class Old(AdamW):
            def advance(self, number, group, step, param, grad, states):  # type: ignore
                """As it was."""
