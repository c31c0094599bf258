"""Findings of `lint` in checkpoint files."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from qmaps import optim
from qmaps.capture import StateRecorder
from qmaps.capture.lint import Finding, lint_file
from qmaps.cli import main
from qmaps.errors import CaptureError
from tests.capture.lint.saved import findings_of, trained

SPECS = {"exp_avg": "B64/DE@8s", "exp_avg_sq": "B64/DE-0@8u+sr"}


def quantized(**options: Any) -> dict[str, Any]:
    optimizer = trained(optim.AdamW, min_quantized_size=0, state_quantizers=SPECS, **options)
    return copy.deepcopy(optimizer.state_dict())


def keys_of(findings: list[Finding]) -> set[tuple[str, str, str, str]]:
    return {
        (finding.level, finding.check, finding.parameter, finding.state) for finding in findings
    }


def test_a_sound_checkpoint_has_no_findings(tmp_path: Path) -> None:
    assert findings_of(trained(torch.optim.AdamW).state_dict(), tmp_path) == []
    assert findings_of(quantized(), tmp_path) == []
    fitted = {"exp_avg": "B64/quantile@8s", "exp_avg_sq": "B64/DE-0@8u+sr"}
    assert findings_of({"optimizer": quantized()}, tmp_path) == []
    optimizer = trained(optim.AdamW, min_quantized_size=0, state_quantizers=fitted)
    assert findings_of(optimizer.state_dict(), tmp_path) == []


def test_maps_that_do_not_hold_zero(tmp_path: Path) -> None:
    specs = {"exp_avg": "B64/linear@4s", "exp_avg_sq": "B64/linear@4u+sr"}
    optimizer = trained(optim.AdamW, min_quantized_size=0, state_quantizers=specs)
    message = "B64/linear@4s does not keep zeros: weights whose gradient is always 0 move"
    expected = [Finding("warning", "no-zero", "", "exp_avg", 4, 0.0, message)]
    assert findings_of(optimizer.state_dict(), tmp_path) == expected


def test_a_save_in_float16_that_loses_second_moments(tmp_path: Path) -> None:
    saved = trained(torch.optim.AdamW, scale=0.15).state_dict()
    v = saved["state"][0]["exp_avg_sq"]
    lost = int(((v != 0) & (v.half() == 0)).sum())
    assert 0 < lost < v.numel()
    (note,) = findings_of(saved, tmp_path)
    assert (note.level, note.check, note.parameter) == ("note", "float16", "")
    assert note.message.startswith("saved in float16, ")
    for state in saved["state"].values():
        state |= {name: value.half() for name, value in state.items() if name != "step"}
    findings = findings_of({"ema": None, "optimizer": saved}, tmp_path)
    weight = next(finding for finding in findings if finding.parameter == "0.weight")
    m, zero = saved["state"][0]["exp_avg"], saved["state"][0]["exp_avg_sq"] == 0
    assert (weight.level, weight.check, weight.state) == ("error", "zeroed", "exp_avg_sq")
    assert weight.count == int((zero & (m != 0)).sum()) > 0
    assert weight.share == weight.count / int((m != 0).sum())
    assert weight.message == (
        f"0 in float16 under {weight.share:.2%} of the non-zero exp_avg; its true values were lost"
    )
    assert {finding.check for finding in findings} == {"zeroed", "stalled"}


def test_values_that_no_state_has(tmp_path: Path) -> None:
    saved = trained(torch.optim.AdamW).state_dict()
    state = saved["state"]
    state[0]["exp_avg"][1, 2] = float("nan")
    state[0]["exp_avg_sq"][5] = 0.0  # lost, not dead: its first moment is not 0
    state[1]["exp_avg_sq"][3] = -1.0
    state[2]["exp_avg"] = state[2]["exp_avg"][:1]
    state[2]["exp_avg_sq"][:] = 0
    state[3]["exp_avg_sq"][:] = 0
    state[3]["exp_avg"][:] = 0
    findings = findings_of(saved, tmp_path)
    assert keys_of(findings) == {
        ("error", "nonfinite", "0.weight", "exp_avg"),
        ("error", "zeroed", "0.weight", "exp_avg_sq"),
        ("error", "negative", "0.bias", "exp_avg_sq"),
        ("error", "shape", "1.weight", "exp_avg_sq"),
        ("warning", "dead-rows", "1.weight", "exp_avg_sq"),
    }
    assert findings[0].message == (
        "0.52% of the elements are NaN or infinite, the first at flat index 18"
    )
    assert findings[-1].message == (
        "8 of 8 rows are all 0, so they had no gradient: 0, 1, 2, 3, 4, ..."
    )


def test_codes_and_scales_that_do_not_fit_and_do_not_hide_others(tmp_path: Path) -> None:
    saved = quantized()
    state = saved["state"]
    state[0]["exp_avg"]["packed"] = state[0]["exp_avg"]["packed"][:-1]
    state[0]["exp_avg_sq"]["scales"]["0"][1] = float("inf")
    state[1]["exp_avg_sq"]["scales"] = {"0": torch.ones(5)}
    state[2]["exp_avg"]["spec"] = "B64/nonsense@8s"
    findings = findings_of(saved, tmp_path)
    assert keys_of(findings) == {
        ("error", "damaged", "0.weight", "exp_avg"),
        ("error", "scales", "0.weight", "exp_avg_sq"),
        ("error", "nonfinite", "0.weight", "exp_avg_sq"),
        ("error", "damaged", "0.bias", "exp_avg_sq"),
        ("error", "damaged", "1.weight", "exp_avg"),
    }
    messages = {(finding.check, finding.parameter): finding.message for finding in findings}
    assert messages["damaged", "0.weight"].startswith("packed has 191 elements of torch.uint8; ")
    assert messages["scales", "0.weight"] == "1 of 3 scales of B64/DE-0@8u+sr are NaN or infinite"


@pytest.mark.parametrize("suffix", ["", ".safetensors"])
def test_a_missing_place_with_a_long_name(suffix: str) -> None:
    with pytest.raises(CaptureError, match=f"xx{suffix}' does not exist$"):
        lint_file("x" * 300 + suffix)


def test_quantized_zeros_and_captures(tmp_path: Path) -> None:
    specs = {"exp_avg": "B64/DE@8s", "exp_avg_sq": "tensor/linear0@4u"}
    optimizer = trained(optim.AdamW, min_quantized_size=0, state_quantizers=specs)
    findings = findings_of(optimizer.state_dict(), tmp_path)
    zeroed = [finding for finding in findings if finding.check == "zeroed"]
    assert {finding.level for finding in zeroed} == {"warning"}
    assert zeroed[0].message.startswith("0 in tensor/linear0@4u under ")
    with StateRecorder(optimizer, tmp_path / "states") as recorder:
        recorder.record()
    assert "zeroed" in {finding.check for finding in lint_file(tmp_path / "states")}


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(["lint", *arguments])
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    saved = trained(torch.optim.AdamW).state_dict()
    file = tmp_path / "o.pt"
    torch.save(saved, file)
    assert call(str(file)) == (0, f"{file}: no problems found\n", "")
    saved["state"][0]["exp_avg"][0, 0] = float("inf")
    torch.save(saved, file)
    code, out, _ = call(str(file), "--json")
    (row,) = json.loads(out)
    assert (code, row["check"], row["parameter"], row["count"]) == (1, "nonfinite", "0.weight", 1)
    code, out, _ = call(str(file))
    assert code == 1
    assert "0.weight" in out
    (tmp_path / "names.txt").write_text("a\nb\n")
    assert call(str(file), "--names", str(tmp_path / "names.txt")) == (
        2,
        "",
        f"error: names has 2 entries, but {str(file)!r} has 4 parameters\n",
    )
    torch.save({"model": {}}, file)
    code, _, err = call(str(file))
    assert (code, err.count("\n")) == (2, 1)
    with pytest.raises(CaptureError, match="does not exist"):
        lint_file(tmp_path / "nothing.pt")
