"""Monitors from a file of settings, in training code without a monitor of its own."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from qmaps.capture.monitor import switch_on
from qmaps.errors import BadTypeError, BadValueError
from qmaps.optim import AdamW, AdamW8bit
from tests.capture.monitor.test_monitor import steps
from tests.training.runs import net

TRAINING = """
import torch, qmaps
layer = torch.nn.Linear(64, 128)
optimizer = qmaps.optim.AdamW8bit(layer.named_parameters())
for _ in range(4):
    optimizer.zero_grad()
    layer(torch.randn(4, 64)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_variable_switches_it_on_in_unchanged_code(tmp_path: Path) -> None:
    settings = tmp_path / "monitor.yaml"
    settings.write_text(f"out: {tmp_path}/m.csv\nevery: 2\nthresholds: {{sqnr_db: 100}}\n")
    environment = {**os.environ, "QMAPS_MONITOR": str(settings)}
    command = [sys.executable, "-c", TRAINING]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "StateWarning: sqnr_db=" in ran.stderr
    with (tmp_path / "m.csv").open(newline="") as file:
        rows = [(row["step"], row["parameter"], row["state"]) for row in csv.DictReader(file)]
    assert rows == [(n, "weight", state) for n in "24" for state in ("exp_avg", "exp_avg_sq")]

    settings.write_text("evry: 2\n")
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == (
        f"qmaps.errors.BadValueError: QMAPS_MONITOR={str(settings)!r}: it has the key 'evry'; "
        "allowed are out, every, window, sample, parameters, thresholds, all_ranks; nearest match: "
        "every"
    )


def test_every_optimizer_with_quantized_states_has_a_file(tmp_path: Path) -> None:
    settings = tmp_path / "monitor.json"
    settings.write_text(f'{{"out": "{tmp_path}/m.csv", "every": 1, "thresholds": null}}')
    kinds = (AdamW8bit, AdamW, AdamW8bit)
    optimizers = [kind(net().parameters(), min_quantized_size=0) for kind in kinds]
    handle = switch_on(settings)
    steps(optimizers[0], 2)
    message = (
        f"QMAPS_MONITOR={str(settings)!r}: optimizer=AdamW has no quantized states; a monitor "
        "needs at least one (state_quantizers, min_quantized_size)"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        steps(optimizers[1], 2)
    steps(optimizers[2], 2)
    handle.remove()
    assert {path.name for path in tmp_path.glob("*.csv")} == {"m.csv", "m-1.csv"}


CASES = {
    "every: 0": (BadValueError, "every=0 must be an int of at least 1"),
    "thresholds: 3": (BadTypeError, "thresholds=3 must be a dict of limits or null"),
    "thresholds: {sqnr: 3}": (
        BadValueError,
        "it has the key 'sqnr'; allowed are stalled_share, stuck_share, zero_point_share, "
        "saturated_share, sqnr_db, update_median_rel_error; nearest match: sqnr_db",
    ),
    "all_ranks: some": (BadTypeError, "all_ranks='some' must be true or false"),
    "out: 3": (BadTypeError, "out=3 must be the path of a file"),
    "- a": (BadValueError, "it is damaged or no settings of a monitor; expected YAML, a dict"),
}


@pytest.mark.parametrize("text", CASES)
def test_bad_settings_are_refused_before_the_first_step(text: str, tmp_path: Path) -> None:
    settings = tmp_path / "monitor.yaml"
    settings.write_text(text)
    error, message = CASES[text]
    with pytest.raises(error) as caught:
        switch_on(settings)
    assert str(caught.value) == f"QMAPS_MONITOR={str(settings)!r}: {message}"
