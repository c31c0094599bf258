"""Scales computed from all elements of a block at once: quantiles of log2 ranges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import qmaps
from qmaps.engines.support import NATIVE
from qmaps.ops.backends import use_backend
from qmaps.optim import AdamW
from tests.engines.native.test_tensors import assert_as_reference, wide
from tests.helpers import LARGEST, SMALLEST, about, same_bits

SPECS = (
    *("logB64/log2-0@4u", "logB64/log2-0@4u+sr", "logB7/log2-0(in_log=true)@3u+sr"),
    *("logB64q0.1/log2-0@2u", "logB64q0.1/log2-0@2u+sr", "logB64q0.1/log2-0(in_log=true)@2u+sr"),
    *("logB128q0.5/log2@4u", "logB128q0.5/log2@4u+sr", "logB100q1/log2@8u+sr"),
    *("logB1024q0.25/log2-0@8u+sr", "logB2000q0.25/log2-0@8u", "logB1q0.5/log2-0@2u"),
    "logB64q0.9/log2(in_log=true)@5u+sr",
)
SETTINGS = settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@SETTINGS
@given(
    st.sampled_from(SPECS),
    st.sampled_from([(0,), (1,), (9,), (300,), (65, 130), (3, 40, 50), (9001,)]),
    st.integers(0, 2**20),
    st.sampled_from([0.0, 0.3, 0.95]),
    st.sampled_from([None, 0.0, SMALLEST, 1e-38, LARGEST]),
)
def test_as_the_reference(
    each_isa: Callable[[], Iterable[str]],
    spec: str,
    shape: tuple[int, ...],
    seed: int,
    zeros: float,
    odd: float | None,
) -> None:
    q = qmaps.quantizer(spec)
    x = wide(shape, seed)
    chosen = torch.rand(shape, generator=torch.Generator().manual_seed(seed + 1))
    x = torch.where(chosen < zeros, 0.0, x)
    if odd is not None and x.numel():
        x.view(-1)[seed % x.numel()] = odd
        x.view(-1)[: x.numel() // 3] = odd
    assert_as_reference(q, x if q.map.signed else x.abs(), each_isa=each_isa)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0])
def test_bad_values_as_the_reference(
    each_isa: Callable[[], Iterable[str]], spec: str, bad: float
) -> None:
    q = qmaps.quantizer(spec)
    x = wide((40, 50), 3)
    x = x if q.map.signed else x.abs()
    x[3, 4] = x[30, 1] = bad
    assert_as_reference(q, x, unchecked=True, each_isa=each_isa)


def test_fused_specs() -> None:
    assert {spec for spec in SPECS if not _fused(spec)} == {"logB2000q0.25/log2-0@8u"}


def _fused(spec: str) -> bool:
    q = qmaps.quantizer(spec)
    return NATIVE.supports(q.normalizer, q.map, (100, 100))


@pytest.mark.parametrize(
    "pair",
    [
        "B128/DE@4s + logB128q0.1/log2-0(in_log=true)@2u+sr",
        "rms4B64/DE@8s + logB128q0.1/log2-0@4u",
        "powB96r1000/DE@8s + logB128q0.1/log2-0@4u",
        "rank1B7x9/DE@4s + powB128r1000/DE-0@8u",
    ],
)
def test_steps_as_the_reference(each_isa: Callable[[], Iterable[str]], pair: str) -> None:
    def stepped() -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(4)
        params = [
            torch.nn.Parameter(torch.randn(shape, generator=generator))
            for shape in ((50, 90), (4100,), (33, 7))
        ]
        optimizer = AdamW(params, lr=0.01, state_quantizers=pair, min_quantized_size=0)
        for _ in range(4):
            for param in params:
                param.grad = torch.randn(param.shape, generator=generator) * 1e-3
            params[1].grad[:300] = 0
            optimizer.step()
        return [param.detach() for param in params]

    with use_backend("reference"):
        expected = stepped()
    for isa in each_isa():
        with about((pair, isa)):
            for ours, theirs in zip(stepped(), expected, strict=True):
                assert same_bits(ours, theirs)
