"""Names of a checkpoint's parameters, in every command that reads one."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

PAIR = "--spec 'B128/DE@4s + B128/DE-0@4u'"
FRAMES = {
    f"sweep optimizer.pt {PAIR}": "sweep/sweep.parquet",
    f"replay optimizer.pt --steps 2 {PAIR}": "replay/replay.parquet",
    f"recommend optimizer.pt --steps 2 --bits 8.3 {PAIR}": "recommend/tensors.parquet",
}


@pytest.mark.parametrize("command", FRAMES)
def test_frames_have_the_names(command: str, call, tmp_path: Path) -> None:
    code, out, _ = call(f"{command} --out {tmp_path}")
    assert code == 0
    frame = pd.read_parquet(tmp_path / FRAMES[command])
    assert "group0.param0" in set(frame["parameter"])
    if not command.startswith("replay"):
        assert "parameter names: numbers" in out
    code, out, _ = call(f"{command} --names names.txt --out {tmp_path}/named")
    assert code == 0
    frame = pd.read_parquet(tmp_path / "named" / FRAMES[command])
    assert set(frame["parameter"]) == {"layers.0.weight", "layers.1.weight"}
    assert "parameter names" not in out


def test_a_recommendation_of_named_parameters(call, tmp_path: Path) -> None:
    pairs = "--spec 'B128/DE@4s + B128/DE-0@4u' --spec 'B256/DE@8s + B256/DE-0@8u'"
    options = "--steps 2 --bits 9 --parameters layers.0.weight --names names.txt"
    code, out, _ = call(f"recommend optimizer.pt {pairs} {options} --out {tmp_path} --json")
    assert code == 0
    assert json.loads(out)["choice"]["overrides"] == {"layers.1.weight": "32-bit"}
    # What is not named stays in 32 bits.


def test_names_that_do_not_go_with_the_states(call, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for verb in ("sweep", "replay", "recommend", "figures"):
        assert call(f"{verb} states --names names.txt --out {out}") == (
            2,
            "",
            "error: names needs an optimizer checkpoint; 'states' holds captured states, which "
            "have names\n",
        )
    code, _, err = call(f"figures --names names.txt --out {out}")
    assert (code, err) == (2, "error: names='names.txt' needs a checkpoint\n")
    assert not out.exists()
