"""The benchmark of Muon."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from benchmarks import muon
from benchmarks.muon import ADAMW, ADAMW_8BIT, MUON, WIDTHS, MuonAndAdamW, MuonTrial, best
from benchmarks.trials import FULL, Trial, run_all
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.lab.workloads.stdlib_lm import StdlibLMTiny

pytestmark = pytest.mark.slow

WORK = StdlibLMTiny(steps=3, warmup_steps=1, validation_batches=1)


def test_trials_with_other_rates_or_widths_are_others(tmp_path: Path) -> None:
    trials = [MuonTrial("x", WORK, MUON, 0, rate=0.02), MuonTrial("x", WORK, MUON, 0, rate=0.04)]
    trials += [MuonTrial("x", WORK, label, 0, rate=0.02) for label in WIDTHS if label != MUON]
    trials += [Trial("x", WORK, FULL, 0)]
    assert len({trial.key for trial in trials}) == len(trials)
    frame = run_all(trials, tmp_path, workers=1)
    assert frame["loss"].nunique() == len(trials)
    assert frame["rate"].tolist()[:2] == [0.02, 0.04]


def test_muon_steps_the_hidden_matrices_and_adamw_the_rest() -> None:
    model = WORK.model(0)
    optimizer = MuonAndAdamW(model, WORK, 0.02, "B128/DE@4s", "8bit")
    for group in optimizer.param_groups:
        group["lr"] *= 0.5  # as a schedule does
    assert [one.param_groups[0]["lr"] for one in optimizer.both] == [0.01, WORK.lr / 2]
    WORK.loss(model, WORK.batch(1, 0)).backward()
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    optimizer.step()
    assert not any(torch.equal(param, before[name]) for name, param in model.named_parameters())
    states = {name: optimizer.state[param] for name, param in model.named_parameters()}
    muons = {name for name, state in states.items() if "momentum_buffer" in state}
    assert muons == {
        name for name in before if name.startswith("blocks") and before[name].dim() == 2
    }
    up = states["blocks.0.up.weight"]["momentum_buffer"]
    assert isinstance(up, QuantizedTensor)
    assert up.quantizer.spec == "B128/DE@4s"


def test_a_best_rate_lies_inside_the_sweep() -> None:
    frame = pd.DataFrame({"lr": [1.0, 2.0, 3.0] * 2, "loss": [5, 4, 6, 5, 4.5, 3]})
    assert best(frame, "lr") == 2.0
    frame["loss"] = [5, 4, 3, 5, 4, 3]
    with pytest.raises(SystemExit, match="the best lr, 3, is at the end of the sweep: widen it"):
        best(frame, "lr")


def test_the_report_compares_seed_by_seed() -> None:
    names = [ADAMW, ADAMW_8BIT, *WIDTHS]
    rows = [
        {"judge": "x", "optimizer": name, "seed": seed, "loss": 2.0 + seed + 0.5 * number,
         "state_mib": 1.5, "part": "contest", "lr": 0.1, "rate": 0.2}
        for number, name in enumerate(names) for seed in range(3)
    ]  # fmt: skip
    found = muon.differences(pd.DataFrame(rows)).set_index("one")
    assert found.loc[ADAMW_8BIT, "difference"] == pytest.approx(0.5)
    assert found.loc[MUON, "other"] == ADAMW
    label = "Muon B128/DE@4s + AdamW8bit"
    apart = names.index(label) - names.index(MUON)
    assert found.loc[label, "difference"] == pytest.approx(0.5 * apart)
    assert "| x | Muon + AdamW | 1.50 | 4.0000 | AdamW | +1.0000 |" in muon.page(
        pd.DataFrame(rows), "COMMAND"
    )
