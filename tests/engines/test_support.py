"""Support of the fused engines, with the reason if the reference runs instead."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import qmaps
from qmaps.cuda.support import CUDA
from qmaps.engines.native.plan import NativeEngine
from qmaps.engines.step import Rule
from qmaps.engines.support import NATIVE, Support
from qmaps.ops.backends import use_backend
from qmaps.optim import SOAP, AdamW
from tests.engines.test_step import adamw, native, parameter_step

ENGINES = {"native": NATIVE, "cuda": CUDA}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (
            "lowrank2(B64/DE@8s)+B64/DE@4s",
            "exp_avg: it has lowrank2(B64/DE@8s), which only the reference encodes",
        ),
        ("rms4B64/DE@8s", "exp_avg: rms4B64 describes no scales to engines"),
        ("rank1B16x16/DE@8s", "exp_avg: rank1B16x16 describes no scales to engines"),
        ("B64/quantile@8s", "quantile@8s of exp_avg is fitted in this step"),
        ("B128/DE@4s+sr", ""),
        ("rank1/DE@4s", ""),
    ],
)
def test_reasons_of_a_state(engine: Support, spec: str, reason: str) -> None:
    rule = Rule("adamw", takes_norms=False, apply=adamw)
    reasons = engine.of_parameter(rule, parameter_step(spec), torch.device("cpu"))
    assert next(reasons, "") == reason


@pytest.mark.parametrize(
    ("engine", "spec", "reason"),
    [
        (NATIVE, "logB2000/log2@8u", "blocks with a log2 range have more than 1024 elements"),
        (CUDA, "logB2000/log2@8u", ""),
        (NATIVE, "powB64r16/linear@12s", "powB64r16 supports maps of at most 8 bits"),
        (
            CUDA,
            "logB100q0.1/log2@8u",
            "its blocks are not a power of two from 8 to 2048 elements",
        ),
    ],
)
def test_reasons_of_a_tensor(engine: Support, spec: str, reason: str) -> None:
    q = qmaps.quantizer(spec)
    assert engine.of_tensor(q.normalizer, q.map, (64, 1000)) == reason
    assert engine.supports(q.normalizer, q.map, (64, 1000)) == (not reason)


@native
def test_a_rule_without_a_kernel() -> None:
    rule = Rule("unknown", takes_norms=False, apply=adamw)
    reason = NativeEngine().unsupported_reason(rule, parameter_step("B256/DE@8s"))
    assert reason == "no kernel has the rule 'unknown' with states 'exp_avg exp_avg_sq'"
    assert NativeEngine().unsupported_reason(rule, parameter_step("B256/DE@8s"))


@native
@pytest.mark.parametrize(
    ("specs", "unsupported"),
    [
        ("lowrank2(B64/DE@8s)+B64/DE@4s + B64/linear@4u", 1),
        ("rms4B64/DE@8s + rank1/linear@4u", 1),
        ("B64/DE@4s+sr + rank1/linear@4u", 0),
    ],
)
def test_the_reference_steps_unsupported_parameters(specs: str, unsupported: int) -> None:
    param = torch.nn.Parameter(torch.ones(48, 40))
    with use_backend("native"):
        optimizer = AdamW([param], state_quantizers=specs, min_quantized_size=0)
        for _ in range(2):
            param.grad = torch.ones_like(param)
            optimizer.step()
    assert optimizer.engine_counts() == {"reference" if unsupported else "native": 1}


@native
def test_counts_are_those_of_the_last_step() -> None:
    """A matrix with scales of the reference alone, and a vector in 32 bits."""
    params = [torch.nn.Parameter(torch.ones(64, 128)), torch.nn.Parameter(torch.ones(100))]
    optimizer = AdamW(params, state_quantizers="rms4B64/DE@4s + 32-bit")
    assert optimizer.engine_counts() == {}
    for engine, counts in (
        ("native", {"native": 1, "reference": 1}),
        ("reference", {"reference": 2}),
    ):
        for param in params:
            param.grad = torch.ones_like(param)
        with use_backend(engine):
            optimizer.step()
        assert optimizer.engine_counts() == counts
    params[0].grad = None
    optimizer.step()
    counts = optimizer.engine_counts()
    assert counts == {"native": 1}
    counts.clear()
    assert optimizer.engine_counts() == {"native": 1}
    params[1].grad = None
    optimizer.step()
    assert optimizer.engine_counts() == {}


def test_a_skipped_step_counts_no_parameter() -> None:
    param = torch.nn.Parameter(torch.ones(64))
    optimizer = AdamW([param], nonfinite="skip")
    param.grad = torch.ones(64)
    optimizer.step()
    param.grad[3] = torch.nan
    optimizer.step()
    assert optimizer.skipped_steps == 1
    assert optimizer.engine_counts() == {}


def test_reasons_without_an_engine() -> None:
    param = torch.nn.Parameter(torch.ones(64, 64))
    param.grad = torch.ones(64, 64)
    requested, rule = AdamW([param]), SOAP([param])
    with use_backend("reference"):
        requested.step()
    rule.step()
    assert requested.engine_counts(reasons=True) == {"reference: it was requested": 1}
    assert rule.engine_counts(reasons=True) == {"reference: its rule has no kernel": 1}


def test_reasons_of_gradients() -> None:
    rule = Rule("adamw", takes_norms=False, apply=adamw)
    step = parameter_step("B128/DE@4s")
    assert isinstance(step.gradient, torch.Tensor)
    double = replace(step, gradient=step.gradient.double())
    reasons = list(NATIVE.of_parameter(rule, double, torch.device("cpu")))
    assert reasons == ["its gradient is torch.float64"]
