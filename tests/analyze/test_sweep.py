from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import qmaps
from qmaps import sweep
from qmaps.errors import CaptureError, OutputError, SpecError
from qmaps.sweep.plan import STANDARD
from tests.analyze.test_analyze import PAIR, states

SPECS = ["B128/DE@4s", "B128/linear@4u", PAIR, "32-bit + rank1/linear@4u"]


def test_one_row_per_tensor_and_quantizer() -> None:
    frame = sweep.run(states(), SPECS)
    counts = frame.groupby(["parameter", "state"]).size().to_dict()
    # B128/DE@4s holds both moments; B128/linear@4u and the pairs' second parts the second only.
    assert counts == {
        ("a", "exp_avg"): 1, ("a", "exp_avg_sq"): 4, ("a", "update"): 2,
        ("b", "exp_avg"): 1, ("b", "exp_avg_sq"): 4, ("b", "update"): 2,
    }  # fmt: skip
    row = frame[(frame["parameter"] == "a") & (frame["quantizer"] == "B128/linear@4u")].iloc[0]
    expected = qmaps.quantizer("B128/linear@4u").error(states()["a"]["exp_avg_sq"])
    for name, value in expected.items():
        assert row[name] == pytest.approx(value, nan_ok=True)
    update = frame[(frame["state"] == "update") & (frame["quantizer"] == PAIR)].set_index(
        "parameter"
    )
    alone = qmaps.analyze.update_error({"a": states()["a"]}, [PAIR]).iloc[0]
    for name in alone.index.difference(["numel", "preset", "quantizer"]):
        assert update.loc["a", name] == pytest.approx(alone[name])
    assert (update["first"] == "B128/DE@4s").all()
    assert update.loc["a", "shape"] == "90x60"


def test_summary_is_the_mean_over_all_elements() -> None:
    frame = sweep.run(states(), SPECS)
    table = sweep.summarize(frame).set_index("quantizer")
    together = qmaps.analyze.update_error(states(), [PAIR]).iloc[0]
    for name in ("mean_abs_error", "max_abs_error", "max_rel_error", "zeroed_share",
                 "bits_per_element"):  # fmt: skip
        assert table.loc[PAIR, name] == pytest.approx(together[name], rel=1e-6)
    assert table.loc[PAIR, "numel"] == together["numel"]
    assert "median_abs_error" not in table.columns
    first = sweep.summarize(frame, state="exp_avg")
    assert first["quantizer"].tolist() == ["B128/DE@4s"]


def test_an_interrupted_sweep_goes_on(tmp_path: Path) -> None:
    uninterrupted = sweep.run(states(), SPECS)

    def stop(done: int, total: int, name: str) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.run(states(), SPECS, out=tmp_path, progress=stop)
    assert not (tmp_path / "sweep.parquet").exists()
    part = tmp_path / "parts" / "00000.parquet"
    stamp = part.stat().st_mtime_ns
    resumed = sweep.run(states(), SPECS, out=tmp_path)
    assert part.stat().st_mtime_ns == stamp
    pd.testing.assert_frame_equal(
        resumed, uninterrupted, check_dtype=False, check_like=True, check_exact=True
    )
    on_disk = pd.read_parquet(tmp_path / "sweep.parquet")
    assert np.allclose(on_disk["mean_abs_error"], uninterrupted["mean_abs_error"])


def test_another_sweep_in_the_folder_is_refused(tmp_path: Path) -> None:
    sweep.run(states(), SPECS[:1], out=tmp_path)
    changed = states()
    changed["a"]["exp_avg"][0, 0] += 1
    for data, specs in ((states(), SPECS[:2]), (changed, SPECS[:1])):
        with pytest.raises(OutputError, match="holds a sweep of other specs or states"):
            sweep.run(data, specs, out=tmp_path)


def test_bad_specs_and_states_measure_nothing(tmp_path: Path) -> None:
    with pytest.raises(SpecError):
        sweep.run(states(), ["B128/DE@4s", "B128/DX@4s"], out=tmp_path / "x")
    bad = states()
    bad["b"]["exp_avg"][7] = float("nan")
    with pytest.raises(CaptureError, match="'exp_avg' of parameter 'b' in 'memory' holds 1 NaN"):
        sweep.run(bad, SPECS)
    with pytest.raises(CaptureError, match="has no Adam states"):
        sweep.run({"a": {"sum": torch.ones(100, 90)}}, [PAIR])
    assert not (tmp_path / "x").exists()


def test_states_of_other_optimizers_take_single_quantizers() -> None:
    frame = sweep.run({"a": {"momentum_buffer": torch.randn(100, 90)}}, ["B128/DE@4s"])
    assert frame["state"].tolist() == ["momentum_buffer"]


def test_codebooks_of_users() -> None:
    codebook = qmaps.Codebook(torch.linspace(-1, 1, 9), label="mine")
    frame = sweep.run(states(), ["B64/mine@4s"], codebooks=[codebook])
    assert set(frame["quantizer"]) == {"B64/mine@4s"}


def test_the_standard_sweep_has_at_least_60_pairs() -> None:
    assert len(STANDARD) >= 60
    assert len(set(STANDARD)) == len(STANDARD)
    frame = sweep.run({"b": states()["b"]}, STANDARD)
    assert (frame["state"] == "update").sum() == len(STANDARD)
    update = frame[frame["state"] == "update"].set_index("quantizer")
    finite = update["mean_abs_error"].map(np.isfinite)
    assert finite.all()
    # The yardstick: no map beats Lloyd-Max of its width under the same normalizer.
    for state in ("exp_avg", "exp_avg_sq"):
        rows = frame[(frame["state"] == state) & frame["quantizer"].str.startswith("B128/")]
        for bits in (3, 4, 6, 8):
            of_width = rows[rows["quantizer"].str.contains(f"@{bits}")].set_index("quantizer")
            limit = of_width["mse"][of_width.index.str.contains("lloyd")].iloc[0]
            assert (of_width["mse"] >= limit).all()
