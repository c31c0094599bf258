"""Any object as any option is accepted and steps, or raises an error of qmaps."""

from __future__ import annotations

import inspect
import math
import re
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import qmaps
from qmaps import lpmm, optim
from qmaps.errors import BadTypeError, BadValueError, QmapsError
from qmaps.optim.base import FixedWidth, Shared
from tests.helpers import examples
from tests.odd import CONTAINERS, NUMBERS, TEXTS, Hostile, objects, refused, tensors

pytestmark = pytest.mark.slow

CLASSES: list[Any] = [
    cls
    for name in optim.__all__
    if isinstance(cls := getattr(optim, name), type)
    and issubclass(cls, optim.QuantizedOptimizer)
    and cls is not optim.QuantizedOptimizer
]
LOW: list[Any] = [lpmm.LPMMSGD, lpmm.LPMMAdam]
# All classes of fixed width take their options alike.
DISTINCT = [c for c in CLASSES if not issubclass(c, FixedWidth)] + [optim.AdamW8bit, *LOW]
OF_TORCH = {"foreach", "fused", "capturable", "differentiable", "amsgrad", "decoupled_weight_decay"}


def options_of(cls: type[Any]) -> list[str]:
    """Every option of an optimizer."""
    names: set[str] = set(Shared.__annotations__)
    for base in cls.__mro__[:-1]:
        if issubclass(base, optim.QuantizedOptimizer) and "__init__" in vars(base):
            actual = inspect.signature(base.__init__).parameters.values()
            names |= {p.name for p in actual if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    names -= {"self", "params", "defaults"}
    return sorted(names - ({"state_quantizers"} if issubclass(cls, FixedWidth) else set()))


def optimizer_with(cls: type[Any], options: dict[str, Any], in_group: bool) -> Any:
    layer = torch.nn.Linear(6, 4)
    if cls in LOW:
        layer = lpmm.convert(layer)
    named = [
        (name, param)
        for name, param in layer.named_parameters()
        if not cls.unsupported_reason(param)
    ]
    optimizer = cls([{"params": named, **options}] if in_group else named,
                    **({"min_quantized_size": 0} if in_group else
                       {"min_quantized_size": 0, **options}))  # fmt: skip
    layer(torch.ones(2, 6)).sum().backward()
    return optimizer


def used(cls: type[Any], options: dict[str, Any], in_group: bool) -> None:
    optimizer = optimizer_with(cls, options, in_group)
    optimizer.step()
    optimizer.zero_grad()
    assert str(optimizer.memory())
    optimizer.load_state_dict(optimizer.state_dict())


@pytest.mark.fuzz
@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_any_object_as_any_option_is_taken_or_refused(data: st.DataObject) -> None:
    cls = data.draw(st.sampled_from(CLASSES + LOW))
    option = data.draw(st.sampled_from(options_of(cls)))
    value = data.draw(objects())
    in_group = data.draw(st.booleans())
    refused(used, cls, {option: value}, in_group)


@pytest.mark.slow
@pytest.mark.parametrize("cls", DISTINCT)
def test_every_odd_object_as_every_option(cls: type[Any]) -> None:
    """For options shared by all classes, each class takes a third of the objects."""
    first = DISTINCT.index(cls)
    for option in options_of(cls):
        values = [*NUMBERS, *TEXTS, *CONTAINERS, *tensors()]
        for value in values[first % 3 :: 3] if option in Shared.__annotations__ else values:
            refused(used, cls, {option: value}, False)


FIRST = [
    ({"lr": None}, BadTypeError, "lr=None must be a number"),
    ({"lr": True}, BadTypeError, "lr=True must be a number"),
    ({"lr": 1j}, BadTypeError, "lr=1j must be a number"),
    ({"lr": 10**400}, BadValueError, "lr=<int of 1329 bits> is too large for a float"),
    ({"lr": -math.inf}, BadValueError, "lr=-inf must be at least 0"),
    ({"lr": torch.ones(2, 3)}, BadValueError, "lr=<float32 tensor of shape (2, 3)> must be a "
     "number, or a tensor that holds one real number"),
    ({"lr": Hostile()}, BadTypeError, "lr=<Hostile instance at 0x..> must be a number"),
    ({"betas": 0.9}, BadTypeError, "betas=0.9 must be two numbers"),
    ({"betas": (0.9, 0.99, 0.999)}, BadValueError, "betas=(0.9, 0.99, 0.999) must be two numbers"),
    ({"betas": ("a", "b")}, BadTypeError, (
        "betas[0]='a' must be a number; YAML reads 1e-3 as text, but 1.0e-3 as a number"
    )),
    ({"betas": "ab"}, BadTypeError, "betas='ab' must be two numbers"),
    ({"eps": [1e-8]}, BadTypeError, "eps=[1e-08] must be a number"),
    ({"min_quantized_size": 2**60}, BadValueError,
     "min_quantized_size=1152921504606846976 must be at most 2**53"),
    ({"refit_every": True}, BadValueError, "refit_every=True must be an int of at least 1"),
    ({"reset_every": 1}, BadValueError, "reset_every=1 must be None or an int of at least 2"),
    ({"reset_every": True}, BadValueError, "reset_every=True must be None or an int of at least 2"),
    ({"reset_every": 10.0}, BadValueError, "reset_every=10.0 must be None or an int of at least 2"),
    ({"nonfinite": ["skip"]}, BadValueError,
     "nonfinite=['skip'] must be one of 'propagate', 'skip', 'raise'"),
    ({"seed": 0.5}, BadTypeError, "seed=0.5 must be an int"),
    ({"maximize": 1}, BadTypeError, "maximize=1 must be True or False"),
    ({"fused": 3}, BadTypeError, "fused=3 must be True, False or None"),
    ({"state_quantizers": "x" * 1000}, BadValueError,
     f"state_quantizers='{'x' * 57}...{'x' * 58}' is not a preset; allowed are 32bit, 8bit, "
     "4bit, 3bit, 2bit, "
     "paper-8bit, paper-4bit, 'SIGNED + UNSIGNED' of specs, or a dict from state names to specs"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "error", "message"), FIRST, ids=range(len(FIRST)))
@pytest.mark.parametrize("in_group", [False, True])
def test_messages_name_the_fault(
    options: dict[str, Any], error: type[QmapsError], message: str, in_group: bool
) -> None:
    with pytest.raises(error) as caught:
        optimizer_with(optim.AdamW, options, in_group)
    assert re.sub(r"0x\w+", "0x..", str(caught.value)) == message


def test_one_element_tensors_are_numbers() -> None:
    for lr in (torch.tensor(0.1), torch.tensor([0.1]), torch.tensor(1)):
        optimizer_with(optim.AdamW, {"lr": lr}, False).step()
    optimizer_with(optim.AdamW, {"betas": (torch.tensor(0.9), torch.tensor(0.99))}, False).step()


def recorded(optimizer: Any, out: Any, options: dict[str, Any]) -> None:
    with qmaps.capture.StateRecorder(optimizer, out, **options) as recorder:
        recorder.record()


@pytest.mark.parametrize("option", ["every", "steps", "start", "parameters",
                                    "names"])  # fmt: skip
def test_a_recorder_takes_or_refuses_any_object(option: str, tmp_path: Any) -> None:
    layer = torch.nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    for number, value in enumerate([*NUMBERS, *TEXTS, *CONTAINERS, *tensors()]):
        if callable(value):  # a function of the user's
            continue
        optimizer = torch.optim.SGD(layer.named_parameters(), momentum=0.9)
        optimizer.step()
        refused(recorded, optimizer, tmp_path / str(number), {option: value})
