"""Rules as expressions. Nothing here needs Triton."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qmaps import optim
from qmaps.engines.step_scalars import values_at
from qmaps.engines.triton.trace import Trace, UntraceableError, trace
from qmaps.optim import QuantizedOptimizer

States = dict[str, torch.Tensor]


def traced(optimizer: QuantizedOptimizer, step: int = 1) -> Trace:
    group = optimizer.param_groups[0]
    scalars = optimizer.step_scalars(group)
    values = dict(zip(scalars, values_at(scalars.values(), step), strict=True))
    return trace(optimizer.advance, optimizer.state_shapes(group["params"][0], group), values)


def params() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(8, 8))]


def test_lines_are_in_the_order_of_the_rule() -> None:
    program = traced(optim.Lion(params()))
    assert program.lines[:4] == ("x0 = p * s0", "x1 = v0 * s1", "x2 = g * s2", "x3 = x1 + x2")
    assert program.param == "x9"
    assert program.states == {"exp_avg": "x12"}


def test_division_and_roots_are_those_of_ieee() -> None:
    lines = traced(optim.AdamW(params())).lines
    assert [line.split(" = ")[1] for line in lines if "(" in line] == [
        "tl.where(x7 > 8.507059173023462e+37, 8.507059173023462e+37, x7)",
        "root(x8)", "divide(x9, s5)", "divide(x3, x11)",
    ]  # fmt: skip


def test_other_branches_have_traces_of_their_own() -> None:
    decayed, plain = traced(optim.SGD(params(), weight_decay=0.1)), traced(optim.SGD(params()))
    values = {"weight_decay": 0.0, "sign": 1.0, "step_size": 0.1}
    values |= {"momentum": 0.0, "rest": 1.0, "lookahead": 0.0}
    assert len(decayed.lines) == len(plain.lines) + 2
    assert plain.holds(values)
    assert not decayed.holds(values)
    assert not plain.holds({**values, "sign": -1.0})


def test_numbers_of_scalars_are_computed_by_the_host() -> None:
    def rule(_: Any, param: Any, grad: Any, states: States, s: dict[str, float]) -> None:
        param.sub_(grad * ((1 - s["beta"]) / s["count"] ** 2))

    program = trace(rule, [], {"beta": 0.9, "count": 3.0})
    assert program.lines == ("x0 = g * s0", "x1 = p - x0")
    assert program.arguments({"beta": 0.75, "count": 4.0}) == [0.25 / 16]


def test_one_tensor_under_two_names() -> None:
    def rule(_: Any, param: Any, grad: Any, states: States, s: dict[str, float]) -> None:
        m = states["m"]
        alias = m
        m.mul_(s["beta"]).add_(grad)
        param.sub_(alias)

    program = trace(rule, ["m"], {"beta": 0.9})
    assert program.lines == ("x0 = v0 * s0", "x1 = x0 + g", "x2 = p - x1")


class Own(QuantizedOptimizer):
    """An optimizer with `change` as its update."""

    states = {"m": optim.State(signed=True)}  # noqa: RUF012

    def __init__(self, params: Any, lr: float = 0.1, **shared: Any) -> None:
        super().__init__(params, locals(), **shared)

    def step_scalars(self, group: dict[str, Any]) -> dict[str, Any]:
        return {"lr": group["lr"]}

    def update(self, param: Any, grad: Any, states: Any, scalars: Any) -> None:
        self.change(param, grad, states["m"], scalars)

    def change(self, p: Any, g: Any, m: Any, s: Any) -> None:
        raise NotImplementedError


REASONS = {
    "it calls mean": lambda p, g, m, s: p.sub_(g.mean()),
    "it calls addcmul, which fuses a product with a sum": lambda p, g, m, s: p.addcmul_(g, m),
    "it calls add, which fuses a product with a sum": lambda p, g, m, s: p.add_(g, alpha=0.5),
    "it changes its gradient in place": lambda p, g, m, s: g.mul_(2),
    "it decides by the values of a tensor": lambda p, g, m, s: p.sub_(g) if p > g else None,
    "it compares a scalar with another number than 0": lambda p, g, m, s: s["lr"] > 0.5,
    "it turns a scalar into a number of Python": lambda p, g, m, s: float(s["lr"]),
    "it computes in float64": lambda p, g, m, s: p.sub_(g.double() * 2),
    "it takes a power other than the square": lambda p, g, m, s: p.sub_(g**3),
    "it uses a tensor of its own": lambda p, g, m, s: p.sub_(torch.ones(8, 8)),
    "it calls exp": lambda p, g, m, s: p.sub_(torch.exp(g)),
    "it calls getitem": lambda p, g, m, s: p.sub_(g[0]),
    "ZeroDivisionError: division by zero": lambda p, g, m, s: p.sub_(1 / 0),
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_rule_that_no_kernel_has_gives_the_reason(reason: str) -> None:
    class Changing(Own):
        change = staticmethod(REASONS[reason])  # type: ignore[assignment]

    with pytest.raises(UntraceableError) as raised:
        traced(Changing(params()))
    assert str(raised.value) == reason


@pytest.mark.parametrize(
    ("name", "reason"),
    [("LAMB", "it calls reshape"), ("Prodigy", "it uses the context's step")],
)
def test_rules_that_are_not_element_wise(name: str, reason: str) -> None:
    with pytest.raises(UntraceableError, match=reason):
        traced(getattr(optim, name)(params()))
