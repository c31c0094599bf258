"""States that are rounded with subtractive dither: steps, checkpoints, and who refuses them."""

from __future__ import annotations

import copy
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qmaps
from qmaps.algebra.philox import RoundingKey
from qmaps.errors import BadTypeError
from qmaps.optim import AdamW

SPECS = "B64/linear@4s+dither + rank1/linear@4u+dither"
BETAS = (0.9, 0.99)


def weight() -> nn.Parameter:
    return nn.Parameter(torch.randn(48, 32, generator=torch.Generator().manual_seed(0)))


def gradients(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(48, 32, generator=generator) for _ in range(count)]


def made(param: nn.Parameter, specs: str = SPECS, **options: Any) -> AdamW:
    return AdamW([param], betas=BETAS, min_quantized_size=0, state_quantizers=specs, **options)


def train(optimizer: AdamW, grads: list[Tensor]) -> None:
    (param,) = optimizer.param_groups[0]["params"]
    for grad in grads:
        param.grad = grad.clone()
        optimizer.step()


def test_each_step_takes_the_offsets_of_the_step_before_away() -> None:
    """The moments by hand: decode with the old key, average, encode with the key of this step."""
    param, grads = weight(), gradients(5)
    first, second = (qmaps.quantizer(spec) for spec in SPECS.split(" + "))
    m, v = torch.zeros(48, 32), torch.zeros(48, 32)
    optimizer = made(param, seed=9)
    train(optimizer, grads)
    for step, g in enumerate(grads, start=1):
        m, v = m * 0.9 + g * (1 - 0.9), v * 0.99 + g * g * (1 - 0.99)
        tm = first.quantize(m, key=RoundingKey(seed=9, step=step, state=0))
        tv = second.quantize(v, key=RoundingKey(seed=9, step=step, state=1))
        m, v = tm.dequantize(), tv.dequantize()
    state = optimizer.state[param]
    assert state["exp_avg"].key == tm.key == RoundingKey(seed=9, step=5, state=0)
    assert state["exp_avg_sq"].key == tv.key
    torch.testing.assert_close(state["exp_avg"].dequantize(), m, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(state["exp_avg_sq"].dequantize(), v, rtol=1e-5, atol=1e-7)


def test_a_run_goes_on_from_a_checkpoint_bit_for_bit() -> None:
    grads = gradients(6)
    whole = weight()
    train(made(whole, seed=4), grads)
    half = weight()
    optimizer = made(half, seed=4)
    train(optimizer, grads[:3])
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    resumed = nn.Parameter(half.detach().clone())
    again = made(resumed, "32-bit + 32-bit")
    again.load_state_dict(saved)
    key = again.state[resumed]["exp_avg"].key
    assert key == RoundingKey(seed=4, step=3, state=0)
    train(again, grads[3:])
    assert torch.equal(resumed, whole)
    # The key of the last encoding counts, not what the optimizer would take for it.
    saved["param_groups"][0]["seed"] = 5
    other = nn.Parameter(half.detach().clone())
    reseeded = made(other)
    reseeded.load_state_dict(copy.deepcopy(saved))
    found = reseeded.state[other]["exp_avg"].dequantize()
    assert torch.equal(found, optimizer.state[half]["exp_avg"].dequantize())


def test_files_keep_the_key(tmp_path: Path) -> None:
    key = RoundingKey(seed=3, step=2**40, tensor=7, state=1, offset=24, runs=(8, 32))
    q = qmaps.quantizer("B64/linear@4s+dither")
    t = q.quantize(torch.randn(256, generator=torch.Generator().manual_seed(0)), key=key)
    for one in (t, replace(t, key=replace(key, runs=None))):
        qmaps.save({"tensor": one}, tmp_path / "t.safetensors")
        back = qmaps.load(tmp_path / "t.safetensors")["tensor"]
        assert (back.key, back.quantizer) == (one.key, q)
        assert torch.equal(back.dequantize(), one.dequantize())
        assert torch.equal(one.clone().dequantize(), one.dequantize())
        assert torch.equal(one.to("cpu").dequantize(), one.dequantize())
    assert t.nbytes == q.nbytes((256,)) == 144


def test_encoding_in_place_changes_the_key_too() -> None:
    q = qmaps.quantizer("B64/linear@4s+dither")
    x = torch.randn(256, generator=torch.Generator().manual_seed(0))
    t = q.quantize(x, key=RoundingKey(step=1))
    assert q.quantize(x, out=t, key=RoundingKey(step=2)) is t
    assert t.key == RoundingKey(step=2)
    assert torch.equal(t.dequantize(), q.quantize(x, key=RoundingKey(step=2)).dequantize())
    before = t.dequantize()
    with pytest.raises(qmaps.QmapsError, match="x holds 1 NaN or infinite elements"):
        q.quantize(torch.full((256,), 1.0).index_fill(0, torch.tensor(3), torch.inf), out=t)
    assert torch.equal(t.dequantize(), before)


def test_a_key_belongs_to_dithered_tensors_alone() -> None:
    t = qmaps.quantizer("B64/linear@4s+dither").quantize(torch.ones(64))
    with pytest.raises(BadTypeError) as caught:
        replace(t, key=None)
    assert str(caught.value) == (
        "key=None of a quantized tensor must be a RoundingKey for B64/linear@4s+dither"
    )
    with pytest.raises(BadTypeError) as caught:
        replace(t, quantizer=qmaps.quantizer("B64/linear@4s"))
    assert str(caught.value).endswith(" of a quantized tensor must be None for B64/linear@4s")
