"""Step counters and random numbers continue beyond the limits of float32 and 32 bits."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

from qmaps import lpmm
from qmaps.algebra.philox import RoundingKey, uniform
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.lpmm import LPMMSGD
from qmaps.ops.backends import use_backend
from qmaps.optim import SGD, Adafactor, AdamW, QuantizedOptimizer
from tests.optim.families import same_bits

ENDS = [2**24 - 2, 2**32 - 2]
STEPS = 4
STILL = {"lr": 0.0, "betas": (0.0, 0.999), "weight_decay": 0.0, "min_quantized_size": 0}
SR = {"state_quantizers": {"exp_avg": "B128/DE@8s+sr", "exp_avg_sq": "rank1/linear@4u+sr"}}


def set_counters(optimizer: QuantizedOptimizer, steps: int, dtype: torch.dtype) -> None:
    for state in optimizer.state.values():
        state["step"] = torch.tensor(steps, dtype=dtype)


def counters(optimizer: torch.optim.Optimizer) -> set[int]:
    return {int(state["step"]) for state in optimizer.state.values()}


def tensors(optimizer: QuantizedOptimizer) -> list[torch.Tensor]:
    results = []
    for p, state in optimizer.state.items():
        results.append(p.detach())
        for value in state.values():
            quantized = isinstance(value, QuantizedTensor)
            results += [value.packed, *value.scales] if quantized else [value]
    return results


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in
              ((40, 30), (500,))]  # fmt: skip
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(dtype)
    return params


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("steps", ENDS)
def test_they_go_on_with_numbers_of_their_own(steps: int, dtype: torch.dtype) -> None:
    """Float32 counters, of older checkpoints and other sources, count the same from there."""

    def run(backend: str) -> tuple[QuantizedOptimizer, list[torch.Tensor]]:
        # The same moment every time, so that codes differ by their random numbers alone.
        optimizer = AdamW(parameters(torch.bfloat16), stochastic_rounding=True, **STILL, **SR)
        codes = []
        with use_backend(backend):
            optimizer.step()
            set_counters(optimizer, steps if dtype == torch.float64 else 2**24 - 2, dtype)
            for _ in range(STEPS):
                optimizer.step()
                codes.append(optimizer.state_dict()["state"][0]["exp_avg"]["packed"].clone())
        return optimizer, codes

    ours, codes = run("native")
    theirs, _ = run("reference")
    assert (
        counters(ours)
        == counters(theirs)
        == {(steps if dtype == torch.float64 else 2**24 - 2) + STEPS}
    )
    assert all(map(same_bits, tensors(ours), tensors(theirs)))
    for i, later in enumerate(codes):
        assert not any(torch.equal(later, earlier) for earlier in codes[:i])


@pytest.mark.parametrize("steps", ENDS)
@pytest.mark.parametrize("name", ["sgd", "side states", "projections", "fitted"])
def test_other_paths_count_on_too(name: str, steps: int) -> None:
    def run(backend: str) -> QuantizedOptimizer:
        params = parameters()
        optimizer: QuantizedOptimizer = {
            "sgd": lambda: SGD(params, momentum=0.9, state_quantizers={"momentum_buffer":
                               "B64&rank1/DE@5s+sr"}, min_quantized_size=0),
            "side states": lambda: Adafactor(params, state_quantizers={
                "row_var": "logB16/log2@8u+sr", "col_var": "B16/linear@8u+sr"},
                min_quantized_size=0),
            "projections": lambda: Adafactor(params, apollo_rank=4, apollo_update_proj_gap=2),
            "fitted": lambda: SGD(params, momentum=0.9, refit_every=3, min_quantized_size=0,
                                  state_quantizers={"momentum_buffer": "B64/quantile@4s+sr"}),
        }[name]()  # fmt: skip
        with use_backend(backend):
            optimizer.step()
            set_counters(optimizer, steps, torch.float64)
            for _ in range(STEPS):
                optimizer.step()
        return optimizer

    ours, theirs = run("native"), run("reference")
    assert counters(ours) == counters(theirs) == {steps + STEPS}
    assert all(map(same_bits, tensors(ours), tensors(theirs)))


@pytest.mark.parametrize("steps", ENDS)
def test_low_precision_parameters_count_on_too(steps: int) -> None:
    def run(backend: str) -> tuple[nn.Module, LPMMSGD]:
        torch.manual_seed(0)
        model = lpmm.convert(nn.Linear(64, 32))
        optimizer = LPMMSGD(model.parameters(), lr=0.1, accumulation_steps=2)
        with use_backend(backend):
            for number in range(2 * (STEPS + 1)):
                if number == 2:
                    set_counters(optimizer, steps, torch.float64)
                optimizer.zero_grad()
                x = torch.randn(8, 64, generator=torch.Generator().manual_seed(number))
                model(x).square().mean().backward()
                optimizer.step()
        return model, optimizer

    (ours_net, ours), (theirs_net, theirs) = run("native"), run("reference")
    assert counters(ours) == counters(theirs) == {steps + STEPS}
    assert {p.accumulator.step for p in ours_net.parameters() if hasattr(p, "accumulator")} == {
        steps + STEPS
    }
    for a, b in zip(ours_net.state_dict().values(), theirs_net.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(ours.state.values(), theirs.state.values(), strict=True):
        assert torch.equal(a["momentum_buffer"].packed, b["momentum_buffer"].packed)


def test_the_numbers_of_no_two_steps_are_the_same() -> None:
    steps = [0, 1, 2, 2**24, 2**24 + 1, 2**32 - 1, 2**32, 2**32 + 1, 2**33, 2**52, 2**53 - 1]
    drawn = [uniform(64, RoundingKey(step=step, purpose=p)) for step in steps for p in (0, 1)]
    for i, later in enumerate(drawn):
        assert not any(torch.equal(later, earlier) for earlier in drawn[:i])


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("steps", ENDS)
def test_checkpoints_resume_there(steps: int, backend: str) -> None:
    options: dict[str, Any] = {"min_quantized_size": 0, **SR}
    with use_backend(backend):
        optimizer = AdamW(parameters(), **options)
        optimizer.step()
        set_counters(optimizer, steps, torch.float64)
        optimizer.step()
        file = io.BytesIO()
        torch.save((optimizer.state_dict(), [p.detach() for p in optimizer.state]), file)
        file.seek(0)
        saved, values = torch.load(file, weights_only=True)
        params = parameters()
        for p, value in zip(params, values, strict=True):
            p.data.copy_(value)
        again = AdamW(params, **options)
        again.load_state_dict(saved)
        for stepped in (optimizer, again):
            stepped.step()
            stepped.step()
    assert counters(again) == {steps + 3}
    assert all(map(same_bits, tensors(again), tensors(optimizer)))


@pytest.mark.parametrize("step", [torch.tensor(5.0), torch.tensor(5), 5, 5.0, torch.tensor([5.0])])
def test_counters_of_any_kind_load(step: Any) -> None:
    optimizer = AdamW(parameters())
    optimizer.step()
    saved = optimizer.state_dict()
    for state in saved["state"].values():
        state["step"] = step
    optimizer.load_state_dict(saved)
    for state in optimizer.state.values():
        assert (state["step"].dtype, state["step"].shape) == (torch.float64, ())
    optimizer.step()
    assert counters(optimizer) == {6}


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=str)
def test_torch_goes_on_from_them(options: dict[str, bool]) -> None:
    ours = AdamW(parameters(), state_quantizers=None)
    ours.step()
    set_counters(ours, 10, torch.float64)
    ours.step()
    saved = {key: ours.state_dict()[key] for key in ("state", "param_groups")}
    for group in saved["param_groups"]:
        group.update(options)
    theirs = torch.optim.AdamW(parameters(), **options)
    theirs.load_state_dict(saved)
    theirs.step()
    assert counters(theirs) == {12}
