"""Averages and weights stalled by rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint
from torch import Tensor, nn

import qmaps
from qmaps import optim
from qmaps.capture import StateRecorder
from qmaps.capture.conversion import convert_state_dict
from qmaps.capture.lint import Finding, lint_file
from qmaps.distributed.rows import by_rows
from qmaps.ops.gaps import stays
from tests.capture.lint.saved import findings_of, trained


def only(findings: list[Finding], check: str) -> list[Finding]:
    return [finding for finding in findings if finding.check == check]


def of_moments(v: Tensor, **group: Any) -> dict[str, Any]:
    state = {"step": torch.tensor(900.0), "exp_avg": torch.zeros_like(v), "exp_avg_sq": v}
    options = {"lr": 1e-3, "weight_decay": 0.0, "betas": (0.9, 0.999), **group}
    return {"state": {0: state}, "param_groups": [{**options, "params": [0]}]}


@pytest.mark.parametrize(("beta2", "moving"), [(0.999, 0), (0.998, 6), (0.996, 128), (0.9, 128)])
def test_mantissas_of_bfloat16_that_decay(beta2: float, moving: int, tmp_path: Path) -> None:
    v = (torch.arange(128, 256) / 128).bfloat16()
    assert int((v * beta2 != v).sum()) == moving
    findings = only(findings_of(of_moments(v, betas=(0.9, beta2)), tmp_path), "stalled")
    if moving == 128:
        assert findings == []
        return
    share = 1 - moving / 128
    message = (
        f"{share:.2%} of the elements cannot decay in bfloat16: {beta2:g} times the value rounds "
        "to the value; all decay by less than 0.9961, or in float32"
    )
    stalled = Finding("warning", "stalled", "", "exp_avg_sq", 128 - moving, share, message)
    assert findings == [stalled]


@pytest.mark.parametrize(("grad", "v"), [(1.0, 0.5), (0.0, 1.0)])  # 0.548 and 0.905 in float32
def test_such_second_moments_neither_rise_nor_fall(grad: float, v: float) -> None:
    p = nn.Parameter(torch.zeros(8, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW([p], lr=1e-6, foreach=False)
    for _ in range(100):
        p.grad = torch.full_like(p, grad)
        optimizer.step()
        if float(optimizer.state[p]["step"]) == 1:
            optimizer.state[p]["exp_avg_sq"].fill_(v)
    assert optimizer.state[p]["exp_avg_sq"].tolist() == [v] * 8


def test_each_average_decays_by_its_own_option(tmp_path: Path) -> None:
    v = torch.ones(64, dtype=torch.bfloat16)
    assert only(findings_of(of_moments(v, betas=(0.9, 0.95)), tmp_path), "stalled") == []
    adan = of_moments(v, betas=(0.98, 0.92, 0.999))
    adan["state"][0]["exp_avg_diff"] = torch.zeros(64)
    assert len(only(findings_of(adan, tmp_path), "stalled")) == 1
    slow = of_moments(v.float(), betas=(0.9, 0.999, 0.9999))
    slow["state"][0]["exp_avg_slow"] = -v.half()
    (finding,) = only(findings_of(slow, tmp_path), "stalled")
    assert finding.state == "exp_avg_slow"
    state = {"square_avg": v}
    groups = [{"lr": 1e-3, "alpha": 0.999, "params": [0]}]
    (finding,) = findings_of({"state": {0: state}, "param_groups": groups}, tmp_path)
    assert (finding.check, finding.state) == ("stalled", "square_avg")


def test_captures_of_bfloat16_states(tmp_path: Path) -> None:
    optimizer = trained(torch.optim.AdamW, dtype=torch.bfloat16)
    with StateRecorder(optimizer, tmp_path / "states") as recorder:
        recorder.record()
    checks = {finding.check for finding in lint_file(tmp_path / "states")}
    assert {"stalled", "weight-decay"} <= checks


def remaining_share(spec: str) -> float:
    """Remaining share of second moments after 300 steps with one nonzero gradient."""
    p = nn.Parameter(torch.zeros(256))
    specs = {"exp_avg_sq": spec}
    optimizer = optim.AdamW([p], lr=0.0, state_quantizers=specs, min_quantized_size=0)
    for number in range(301):
        p.grad = torch.full((256,), 0.7 * (number == 0))
        p.grad[0] = 1.0
        optimizer.step()
        if not number:
            state = optimizer.state[p]
            state["exp_avg_sq"] = qmaps.quantizer(spec).quantize(p.grad.square())
            before = state["exp_avg_sq"].dequantize()
    return float((optimizer.state[p]["exp_avg_sq"].dequantize() / before)[1:].mean())


@pytest.mark.parametrize("spec", ["B256/DE-0@8u", "B256/DE@8u", "B256/linear@4u", "B256/DE-0@4u"])
def test_codes_that_stay_are_second_moments_that_do_not_fall(spec: str) -> None:
    q = qmaps.quantizer(spec)
    every = torch.arange(len(q.map.codebook()))
    assert int(stays(q, every, 0.999).sum()) >= len(every) - 2  # 0 and the largest
    assert remaining_share(spec) == 1  # in 32 bits 0.74
    for rounding in ("+sr", "+qsr"):
        assert stays(qmaps.quantizer(spec + rounding), every, 0.999) is None
    assert 0.6 < remaining_share(f"{spec}+sr") < 0.9


def test_codes_that_do_not_stay() -> None:
    q = qmaps.quantizer("B256/linear@12u")
    every = torch.arange(4096)
    assert not stays(q, every, 0.9)[8:].any()
    assert remaining_share("B256/linear@12u") < 0.8
    assert stays(qmaps.quantizer("logB256/log2@8u"), every, 0.999) is None


@pytest.mark.parametrize("library", ["qmaps", "bitsandbytes", "torchao"])
def test_8_bit_states_of_every_library(library: str, tmp_path: Path) -> None:
    p = nn.Parameter(torch.zeros(64, 128))
    optimizer = optim.AdamW([p], state_quantizers="8bit-0.3")
    p.grad = torch.randn(64, 128)
    optimizer.step()
    if library == "torchao":
        pytest.importorskip("torchao")
    saved, _ = convert_state_dict(optimizer.state_dict(), library)
    (finding,) = only(findings_of(saved, tmp_path), "stalled")
    assert (finding.level, finding.parameter, finding.state) == ("note", "", "exp_avg_sq")
    assert finding.share > 0.9
    assert "rounds to nearest: 9" in finding.message
    assert finding.message.endswith(
        "% of the elements would keep their code, and be too large, if their gradients fell "
        "tenfold beside others (decay 0.999); in B256/geometric@8u+qsr they would follow (qmaps "
        "convert --states)"
    )


def quantized(pair: str, **options: Any) -> optim.AdamW:
    torch.manual_seed(0)
    named = [(name, nn.Parameter(torch.zeros(64, 128))) for name in ("first", "second")]
    optimizer = optim.AdamW(named, state_quantizers=pair, **options)
    for _, p in named:
        p.grad = torch.randn(64, 128)
    optimizer.step()
    return optimizer


def test_one_note_for_all_parameters_whether_or_not_a_decay_is_known(tmp_path: Path) -> None:
    saved = quantized("B256/DE@8s + B128/DE-0@4u").state_dict()
    (finding,) = expected = only(findings_of(saved, tmp_path), "stalled")
    assert finding.count > 64 * 128
    assert "in B128/geometric@4u+qsr they would follow" in finding.message
    for group in saved["param_groups"]:
        del group["betas"]
    assert only(findings_of(saved, tmp_path), "stalled") == expected


@pytest.mark.parametrize("rounding", ["+sr", "+qsr"])
def test_second_moments_that_follow_have_no_note(rounding: str, tmp_path: Path) -> None:
    saved = quantized(f"B256/DE@8s + B256/DE-0@8u{rounding}").state_dict()
    assert only(findings_of(saved, tmp_path), "stalled") == []
    slow = quantized("B256/DE@8s + B256/DE-0@8u", betas=(0.9, 0.9)).state_dict()
    assert only(findings_of(slow, tmp_path), "stalled") == []


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("library", ["qmaps", "qmaps by rows", "bitsandbytes"])
def test_codes_in_a_folder_of_distributed_checkpoint(library: str, tmp_path: Path) -> None:
    optimizer = quantized("8bit-0.3")
    saved, _ = convert_state_dict(optimizer.state_dict(), library.split()[0])
    (expected,) = only(findings_of(saved, tmp_path), "stalled")
    if "rows" in library:
        with by_rows():
            saved = optimizer.state_dict()
    entries = {"optimizer": saved}
    torch.distributed.checkpoint.save(entries, checkpoint_id=tmp_path / "folder", no_dist=True)
    assert only(lint_file(tmp_path / "folder"), "stalled") == [expected]


@pytest.mark.parametrize(
    ("spec", "ratio"),
    [("tensor/linear0@8u", "0.044"), ("B64/linear0@8u+sr", "0.044"), ("B64/DE@4u", "0.04"),
     ("B64/DE@8u+sr", ""), ("B64/DE-0@4u+sr", ""), ("B64/linear@4u+sr", "")],
)  # fmt: skip
def test_maps_that_make_second_moments_0(spec: str, ratio: str, tmp_path: Path) -> None:
    specs = {"exp_avg_sq": spec}
    optimizer = trained(optim.AdamW, min_quantized_size=0, state_quantizers=specs)
    findings = only(findings_of(optimizer.state_dict(), tmp_path), "to-zero")
    if not ratio:
        assert findings == []
        return
    message = (
        f"{spec} makes it 0 where gradients are below {ratio} times the largest beside them; the "
        "next update may be m / eps"
    )
    assert findings == [Finding("warning", "to-zero", "", "exp_avg_sq", 4, 0.0, message)]


def decayed(cls: Any, weight: float, **options: Any) -> float:
    torch.manual_seed(0)
    p = nn.Parameter(torch.full((512,), weight, dtype=torch.bfloat16))
    optimizer = cls([p], lr=1e-3, weight_decay=1.0, **options)
    for _ in range(300):
        p.grad = torch.randn(512).bfloat16()
        optimizer.step()
    return float(p.detach().float().mean() / weight)


IF = "if the weights are bfloat16, "
ALONE = "lr * weight_decay = 1e-05 alone changes no weight in bfloat16; {} do not decay without master weights or stochastic rounding"  # noqa: E501


def test_weights_that_do_not_decay(tmp_path: Path) -> None:
    optimizer = trained(torch.optim.AdamW, dtype=torch.bfloat16, foreach=False)
    (finding,) = only(findings_of(optimizer.state_dict(), tmp_path), "weight-decay")
    expected = Finding("warning", "weight-decay", "", "", 4, 0.0, IF + ALONE.format("they"))
    assert finding == expected
    assert decayed(torch.optim.AdamW, 0.02, foreach=False) > 0.95  # exactly 0.74
    net = nn.Sequential(nn.Linear(16, 12), nn.Linear(12, 8)).bfloat16()
    optimizer = trained(optim.AdamW, dtype=torch.bfloat16)
    assert (
        only(findings_of(optimizer.state_dict(), tmp_path), "weight-decay") == []
    )  # the dtype is unknown
    (finding,) = only(findings_of(optimizer.state_dict(), tmp_path, names=net), "weight-decay")
    assert finding.message == ALONE.format("those above about 0.1")
    assert decayed(optim.AdamW, 0.02) < 0.8
    assert decayed(optim.AdamW, 1.0) > 0.95
    assert decayed(optim.AdamW, 1.0, stochastic_rounding=True) < 0.8


def test_the_dtype_of_the_model_beside_it(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    optimizer = trained(optim.AdamW, dtype=torch.bfloat16)
    net = nn.Sequential(nn.Linear(16, 12), nn.Linear(12, 8)).bfloat16()
    save_file(net.state_dict(), tmp_path / "model.safetensors")
    assert len(only(findings_of(optimizer.state_dict(), tmp_path), "weight-decay")) == 1


@pytest.mark.parametrize(
    "options",
    [{"stochastic_rounding": True}, {"master_weights": True}, {"master_weights": "bf16+8"},
     {"weight_decay": 0.0}, {"lr": 0.5}],
    ids=str,
)  # fmt: skip
def test_weights_that_do(options: dict[str, Any], tmp_path: Path) -> None:
    optimizer = trained(optim.AdamW, dtype=torch.bfloat16, **options)
    net = nn.Sequential(nn.Linear(16, 12), nn.Linear(12, 8)).bfloat16()
    assert only(findings_of(optimizer.state_dict(), tmp_path, names=net), "weight-decay") == []


@pytest.mark.parametrize("name", ["compensation", "kahan_comp", "shift"])
def test_kahan_summation_keeps_decay(name: str, tmp_path: Path) -> None:
    saved = trained(torch.optim.AdamW, dtype=torch.bfloat16).state_dict()
    assert len(only(findings_of(saved, tmp_path), "weight-decay")) == 1
    for state in saved["state"].values():
        state[name] = torch.zeros_like(state["exp_avg"])
    assert only(findings_of(saved, tmp_path), "weight-decay") == []


def test_decay_of_adam_is_in_the_gradient(tmp_path: Path) -> None:
    optimizer = trained(torch.optim.Adam, dtype=torch.bfloat16, weight_decay=0.01)
    assert only(findings_of(optimizer.state_dict(), tmp_path), "weight-decay") == []
