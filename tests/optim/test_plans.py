"""Repeated plans: changes they must notice, and objects they must release."""

from __future__ import annotations

import sys
import weakref
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import qmaps
from qmaps import lpmm
from qmaps.ops.backends import use_backend
from qmaps.optim import SGD, AdamW8bit, SGD8bit

pytestmark = pytest.mark.skipif(
    qmaps.backend() != "native", reason="the native engine is not built"
)


def two() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(5000)) for _ in range(2)]


def test_groups_that_change_places_keep_their_options() -> None:
    first, second = two()
    optimizer = SGD8bit(
        [{"params": [first], "lr": 1.0}, {"params": [second], "lr": 1e-3}], momentum=0.9
    )
    for _ in range(2):
        second.grad = torch.ones_like(second)
        optimizer.step()
        optimizer.param_groups.reverse()
    assert torch.allclose(second, torch.tensor(-0.0029), rtol=1e-2)


def test_a_new_seed_is_the_next_steps() -> None:
    states = []
    for engine in ("native", "reference"):
        (param, _) = two()
        specs = {"momentum_buffer": "B128/DE@8s+sr"}
        optimizer = SGD([param], momentum=0.9, state_quantizers=specs)
        with use_backend(engine):
            for seed in (0, 0, 5):
                optimizer.param_groups[0]["seed"] = seed
                param.grad = torch.linspace(0, 1, 5000)
                optimizer.step()
        states.append(optimizer.state[param]["momentum_buffer"].packed)
    assert torch.equal(*states)


def test_gradients_do_not_outlive_their_step() -> None:
    (param, _) = two()
    optimizer = AdamW8bit([param])
    references = []
    for _ in range(3):
        param.grad = torch.ones_like(param)
        references.append(weakref.ref(param.grad))
        optimizer.step()
        param.grad = None
    assert [reference() is None for reference in references] == [True, True, True]


@pytest.mark.parametrize("strided", [False, True])
def test_gradients_do_not_outlive_a_step_that_is_skipped(strided: bool) -> None:
    param = nn.Parameter(torch.zeros(50, 100))
    optimizer = AdamW8bit([param])
    for found_inf in (0.0, 1.0, 1.0, 0.0):
        param.grad = torch.ones(100, 50).T if strided else torch.ones(50, 100)
        reference = weakref.ref(param.grad)
        optimizer.grad_scale, optimizer.found_inf = torch.ones(()), torch.tensor(found_inf)
        optimizer.step()
        param.grad = None
        assert reference() is None, found_inf
    assert optimizer.skipped_steps == 2


def test_gradients_do_not_outlive_a_step_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    (param, _) = two()
    optimizer = AdamW8bit([param])
    param.grad = torch.ones_like(param)
    optimizer.step()
    reference = weakref.ref(param.grad)
    monkeypatch.setattr(optimizer, "step_scalars", lambda group: {}[group["lr"]])
    with pytest.raises(KeyError):
        optimizer.step()
    param.grad = None
    assert reference() is None


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_a_step_that_is_left_out_leaves_no_states(engine: str) -> None:
    (param, _) = two()
    optimizer: Any = AdamW8bit([param])
    optimizer.found_inf = torch.ones(())
    param.grad = torch.ones_like(param)
    with use_backend("reference"):
        optimizer.step()
    assert optimizer.skipped_steps == 1
    assert not optimizer.state
    optimizer.found_inf = None
    with use_backend(engine):
        optimizer.step()
    assert int(optimizer.state[param]["step"]) == 1


def test_gradients_in_codes_are_divided_by_a_scale() -> None:
    results = []
    for scale in (None, torch.tensor(1024.0)):
        model = lpmm.convert(nn.Linear(64, 64, bias=False), seed=1)
        optimizer: Any = lpmm.LPMMSGD(model.parameters(), lr=0.1)
        before = model.weight.decode()
        for grad_scale in (None, scale):
            optimizer.grad_scale = grad_scale
            factor = 1.0 if grad_scale is None else 1024.0
            (model(torch.ones(2, 64)).square().mean() * factor).backward()
            optimizer.step()
        results.append(float((model.weight.decode() - before).abs().mean()))
    assert results[1] == pytest.approx(results[0], rel=0.2)


def test_groups_that_do_not_step_are_not_asked() -> None:
    first, second = two()
    optimizer = AdamW8bit([{"params": [first]}, {"params": [second]}])
    optimizer.param_groups[1]["lr"] = None
    first.grad = torch.ones_like(first)
    optimizer.step()
    assert int(optimizer.state[first]["step"]) == 1


def test_a_users_attribute_is_not_taken_for_codes() -> None:
    (param, _) = two()
    param.codes = "mine"  # type: ignore[attr-defined]
    param.grad = torch.ones_like(param)
    optimizer = AdamW8bit([param])
    optimizer.step()
    assert "reference" not in optimizer.engine_counts()


@pytest.mark.skipif(qmaps.backend() != "native", reason="needs the native engine")
def test_a_step_is_few_calls() -> None:
    """Calls of Python functions in qmaps, the cost of optimizers with small parameters."""
    param = nn.Parameter(torch.zeros(128, 64))
    optimizer = AdamW8bit([param])
    files: list[str] = []
    package = str(Path(qmaps.__file__).parent)

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            files.append(frame.f_code.co_filename)

    for calls, of_files in ((250, 30), (45, 12), (45, 12)):
        param.grad = torch.ones_like(param)
        files.clear()
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            optimizer.step()
        finally:
            sys.setprofile(before)
        assert len(files) <= calls
        assert len(set(files)) <= of_files
