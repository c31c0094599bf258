"""Sweeps, replays and analyses of quantizers with a low-rank part."""

from __future__ import annotations

from dataclasses import replace

import pytest

import qmaps
from qmaps import sweep
from qmaps.engines.support import NATIVE
from qmaps.errors import BadValueError
from qmaps.sweep import sample
from tests.algebra.test_low_rank import FACTORS, SPEC, matrix


def test_a_replay_refuses_them() -> None:
    states = {"a": {"exp_avg": matrix(), "exp_avg_sq": matrix().square()}}
    with pytest.raises(BadValueError) as caught:
        qmaps.replay.run(states, f"{SPEC} + 32-bit", steps=4)
    assert str(caught.value) == (
        f"{SPEC} has a low-rank part, whose codes alone tell nothing of a move; a replay supports "
        "quantizers without one"
    )


def test_errors_of_updates_have_the_product_in_them() -> None:
    """Engines without low-rank factors leave such a tensor to the reference."""
    m, v = matrix(), matrix().square() + 0.1
    states = {"a": {"exp_avg": m, "exp_avg_sq": v}}
    pair = f"{SPEC} + B128/DE-0@8u"
    row = sweep.run(states, [pair]).query("state == 'update'")
    t, s = qmaps.quantizer(SPEC).quantize(m), qmaps.quantizer("B128/DE-0@8u").quantize(v)
    error = (m / (v.sqrt() + 1e-8) - t.dequantize() / (s.dequantize().sqrt() + 1e-8)).abs()
    assert row["mean_abs_error"].item() == pytest.approx(float(error.mean()), rel=1e-4)
    assert not NATIVE.decodes(t)
    assert NATIVE.decodes(replace(t, quantizer=replace(t.quantizer, low_rank=None),
                                          beside=()))  # fmt: skip
    frame = qmaps.analyze.update_error(states, [pair])
    assert frame["mean_abs_error"].item() == pytest.approx(float(error.mean()), rel=1e-4)


def test_a_sweep_measures_whole_matrices_only(monkeypatch: pytest.MonkeyPatch) -> None:
    large = {"exp_avg": matrix(4000), "exp_avg_sq": matrix(4000).square()}
    row = sweep.run({"a": large}, [SPEC]).query("state == 'exp_avg'")
    t = qmaps.quantizer(SPEC).quantize(large["exp_avg"])
    assert row["mse"].item() == pytest.approx(
        float((t.dequantize() - large["exp_avg"]).double().square().mean()), rel=1e-6
    )
    assert row["bits_per_element"].item() == t.bits_per_element
    monkeypatch.setattr(sample, "LARGEST", 0)
    large_row = sweep.run({"a": large}, [SPEC]).query("state == 'exp_avg'")
    assert large_row["mse"].item() == row["mse"].item()
    with pytest.raises(BadValueError) as caught:
        sweep.run({"a": large}, [SPEC], sample=0.01)
    assert str(caught.value) == (
        f"{SPEC} {FACTORS}; sweep it without sample, and with memory for the largest"
    )
