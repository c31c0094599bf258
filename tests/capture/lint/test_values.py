"""Sound states that resemble lost ones, and lost ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard

from qmaps import optim
from qmaps.capture.conversion import convert_state_dict
from tests.capture.lint.saved import findings_of, trained


def with_small_gradients(make: Any, **options: Any) -> dict[str, Any]:
    """A checkpoint with float32 underflow in the second moments of one input."""
    torch.manual_seed(0)
    net = nn.Linear(64, 16)
    optimizer = make(net.named_parameters(), **options)
    x = torch.randn(8, 64)
    x[:, 0] = 1e-25
    net(x).square().mean().backward()
    optimizer.step()
    saved: dict[str, Any] = optimizer.state_dict()
    state = saved["state"][0]
    assert ((state["exp_avg_sq"] == 0) & (state["exp_avg"] != 0)).sum() == 16
    return saved


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.NAdam, optim.AdamW, optim.LAMB])
def test_second_moments_that_underflow_without_harm(make: Any, tmp_path: Path) -> None:
    assert {finding.check for finding in findings_of(with_small_gradients(make), tmp_path)} <= {
        "float16"
    }


def test_they_are_errors_where_eps_is_so_small_that_they_do_harm(tmp_path: Path) -> None:
    saved = with_small_gradients(torch.optim.AdamW, eps=1e-30)
    (finding, *_) = findings_of(saved, tmp_path)
    assert (finding.level, finding.check, finding.count) == ("error", "zeroed", 16)


def test_the_largest_second_moment_divides_with_amsgrad(tmp_path: Path) -> None:
    saved = trained(torch.optim.AdamW, amsgrad=True).state_dict()
    saved["state"][0]["exp_avg_sq"][0, 0] = 0
    assert findings_of(saved, tmp_path) == []
    saved["state"][0]["max_exp_avg_sq"][0, 0] = 0
    assert [finding.check for finding in findings_of(saved, tmp_path)] == ["zeroed"]


def test_one_second_moment_for_a_tensor(tmp_path: Path) -> None:
    saved = trained(torch.optim.AdamW).state_dict()
    for state in saved["state"].values():
        state["exp_avg_sq"] = state["exp_avg_sq"].mean()  # as in NovoGrad
    assert findings_of(saved, tmp_path) == []
    saved["state"][1]["exp_avg_sq"].zero_()
    assert [finding.check for finding in findings_of(saved, tmp_path)] == ["zeroed"]


def test_moments_in_another_basis(tmp_path: Path) -> None:
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(12, 16))
    optimizer = optim.SOAP([p], min_quantized_size=0)
    for _ in range(3):
        p.grad = torch.ones(12, 1) * torch.randn(16)  # of rank 1: v is 0 in other directions
        optimizer.step()
    state = optimizer.state_dict()["state"][0]
    state["exp_avg_sq"][1:] = 0
    assert {finding.check for finding in findings_of({**optimizer.state_dict()}, tmp_path)} <= {
        *("float16", "dead-rows"),
    }


def test_states_in_dicts_and_codes_of_other_libraries(tmp_path: Path) -> None:
    saved = trained(torch.optim.SGD, momentum=0.9).state_dict()
    state = saved["state"][0]
    state["momentum_buffer"] = {0.9: state["momentum_buffer"], 0.99: torch.ones(12, 16)}
    state["ustate.codes"] = torch.randint(0, 255, (12, 16), dtype=torch.uint8)
    assert findings_of(saved, tmp_path) == []
    state["momentum_buffer"][0.99][0, 0] = float("nan")
    (finding,) = findings_of(saved, tmp_path)
    assert (finding.check, finding.state) == ("nonfinite", "momentum_buffer.0.99")
    state["momentum_buffer"] = torch.zeros(12, 16, dtype=torch.uint8)
    (finding,) = findings_of(saved, tmp_path)
    assert (finding.level, finding.check, finding.state) == ("error", "damaged", "momentum_buffer")


@pytest.mark.parametrize("name", ["Lion", "Adagrad", "RMSprop", "Lion8bit", "RMSprop8bit"])
def test_one_state_of_bitsandbytes(name: str, tmp_path: Path) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    p = nn.Parameter(torch.randn(64, 128))
    optimizer = getattr(bitsandbytes.optim, name)([p])
    p.grad = torch.randn(64, 128)
    optimizer.step()
    saved = optimizer.state_dict()
    assert findings_of(saved, tmp_path) == []
    flat = saved["state"][0]
    flat = flat.get("__bnb_optimizer_quant_state__", flat)
    flat["absmax1" if "8bit" in name else "state1"][0] = float("inf")
    (finding,) = findings_of(saved, tmp_path)
    assert finding.level == "error"
    assert finding.check == ("damaged" if "8bit" in name else "nonfinite")


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("width", [256, 100])  # rows of whole blocks, and not
def test_the_full_state_of_a_sharded_optimizer(width: int, tmp_path: Path) -> None:
    net = fully_shard(nn.Linear(width, 64, bias=False))
    optimizer = optim.AdamW8bit(net.named_parameters())
    net(torch.randn(4, width)).square().mean().backward()
    optimizer.step()
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    saved = get_optimizer_state_dict(net, optimizer, options=options)
    exact = {
        name: optimizer.state[net.weight][name].dequantize().view(64, width)
        for name in ("exp_avg", "exp_avg_sq")
    }
    assert {entry.check for entry in findings_of(saved, tmp_path)} <= {"stalled"}
    converted, report = convert_state_dict(saved, "torch")
    assert {entry.how for entry in report.states} == {"same values"}
    for name, values in exact.items():
        assert torch.equal(converted["state"]["weight"][name], values)
    converted, report = convert_state_dict(saved, "qmaps")
    assert report.states[0].became == "B256/DE-sym@8s"
    assert {entry.how for entry in report.states} == {"same values"}
