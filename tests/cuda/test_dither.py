"""Emulated steps of dithered states decode by the last encoding's key, and note the new one."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from qmaps.engines.backends import use_backend
from qmaps.errors import BackendError
from qmaps.optim import AdamW
from tests.cuda.emulation import EmulatedEngine
from tests.optim.dithered_states import (
    SPECS,
    Change,
    another_key,
    another_tensor_of_these_codes,
    encoded_in_place,
    runs,
)
from tests.optim.families import same_bits


def nothing(optimizer: AdamW, param: torch.nn.Parameter) -> None:
    pass


def overflow(optimizer: AdamW, param: torch.nn.Parameter) -> None:
    another_key(optimizer, param)
    assert param.grad is not None
    param.grad[3, 5] = float("inf")


def run(change: Change, left: int = 0, steps: int = 5, **options: object) -> AdamW:
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(48, 40, generator=generator)) for _ in range(2)]
    optimizer = AdamW(params, state_quantizers=SPECS, min_quantized_size=0, seed=3, **options)
    for number in range(steps):
        for param in params:
            param.grad = torch.randn(48, 40, generator=generator)
        if number == 3:
            change(optimizer, params[1])
        optimizer.step()
        if left >= 0:
            assert optimizer._stepper.reference_count == (left if number == 3 else 0)
    return optimizer


def assert_same(ours: AdamW, theirs: AdamW) -> None:
    for one, other in zip(ours.state.items(), theirs.state.items(), strict=True):
        assert same_bits(one[0].detach(), other[0].detach())
        assert one[1]["step"] == other[1]["step"]
        for name in ("exp_avg", "exp_avg_sq"):
            a, b = one[1][name], other[1][name]
            assert a.key == b.key
            assert torch.equal(a.packed, b.packed)
            assert same_bits(a.dequantize(), b.dequantize())


@pytest.mark.parametrize(
    ("change", "left"),
    [(nothing, 0), (encoded_in_place, 0), (another_key, 0), (another_tensor_of_these_codes, 0),
     (runs, 1)],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_a_step_decodes_by_the_key_of_that_moment(
    change: Change, left: int, on_device: EmulatedEngine
) -> None:
    ours = run(change, left)
    assert any(name.startswith("step<") and "true>" in name for name in on_device.launched)
    with use_backend("reference"):
        assert_same(ours, run(change, -1))


def test_steps_that_are_left_out_leave_the_key(on_device: EmulatedEngine) -> None:
    ours = run(overflow, steps=4, nonfinite="skip")
    assert ours._stepper.reference_count == 0
    assert [int(state["step"]) for state in ours.state.values()] == [3, 3]
    with use_backend("reference"):
        assert_same(ours, run(overflow, -1, steps=4, nonfinite="skip"))


def test_states_that_begin_anew(on_device: EmulatedEngine) -> None:
    ours = run(nothing, reset_every=2)
    with use_backend("reference"):
        assert_same(ours, run(nothing, -1, reset_every=2))


def test_gradients_do_not_outlive_the_step(on_device: EmulatedEngine) -> None:
    optimizer = run(nothing, steps=1)
    (param, *_) = optimizer.state
    gradient = weakref.ref(param.grad)
    optimizer.zero_grad()
    gc.collect()
    assert gradient() is None


def test_steps_cannot_be_recorded(
    on_device: EmulatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph would repeat the step without the host, which notes the keys."""
    optimizer = run(nothing, steps=2)
    monkeypatch.setattr("qmaps.cuda.plan.recording", lambda: True)
    with pytest.raises(BackendError) as caught:
        optimizer.step()
    assert str(caught.value) == (
        "step() with dithered states cannot be recorded in a CUDA graph: the host notes the key "
        "of each encoding; use +sr in place of +dither"
    )
