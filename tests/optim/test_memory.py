"""Memory of states, before and after the first step."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import qmaps
from qmaps.nn import StableEmbedding
from qmaps.optim import SGD, AdamW, AdamW4bit, AdamW8bit, RMSprop8bit
from qmaps.optim.records import states_of
from tests.optim.families import FAMILIES, Family, label

SHAPES = ((70, 90), (5000,), (3, 40, 50), (64,), (), (0,), (16, 33, 3, 3))
SPECS = {
    "DE": ("B256/DE-sym@8s", "B256/geometric@8u+qsr"),
    "rank1": ("B128/DE@4s", "rank1/linear@4u"),
    "odd": ("B7x8/DE@5s", "B100x8&rank1/linear@3u"),
    "row": ("row/DE@8s", "colx8/linear@12u"),
    "log": ("tensor/DE@8s", "logB256/log2@8u"),
    "fitted": ("B64/quantile@8s", "B64/lloyd@4u"),
    "mixed": (None, "tensor/linear@2u"),
    "32": (None, None),
}


def after_a_step(optimizer) -> None:
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.randn_like(p)
    optimizer.step()


@pytest.mark.parametrize("specs", SPECS)
@pytest.mark.parametrize("family", FAMILIES, ids=label)
def test_the_prediction_equals_the_memory_after_a_step(family: Family, specs: str) -> None:
    names = family.full.state_names
    chosen = {name: SPECS[specs][name not in family.full.signed_states] for name in names}
    options = {**family.options[-1], "state_quantizers": chosen, "min_quantized_size": 100}
    params = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    optimizer = family.full(params, **options)
    before = optimizer.memory()
    assert before.predicted
    assert optimizer.state_nbytes == 0
    after_a_step(optimizer)
    after = optimizer.memory()
    assert [dataclasses.replace(row, predicted=False) for row in before] == list(after)
    assert before.nbytes == after.nbytes == optimizer.state_nbytes
    assert not after.predicted
    used = len(states_of(optimizer, optimizer.param_groups[0]))
    assert after.numel == sum(p.numel() for p in params)
    assert after.nbytes_in_32_bits == 4 * used * after.numel


@pytest.mark.parametrize(
    "spec", ["B64/mine@3s", "B64/quantile-normal@4s", "B32x8/nf4@4s", "tensor/e4m3@8s"]
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_quantizer_predicts_the_bytes_of_a_shape(spec: str, shape: tuple[int, ...]) -> None:
    q = qmaps.quantizer(spec, [qmaps.Codebook([-1, -0.25, 0, 0.25, 1], label="mine")])
    assert q.nbytes(shape) == q.quantize(torch.randn(shape)).nbytes


def net() -> nn.Module:
    return nn.ModuleDict(
        {"tokens": StableEmbedding(100, 64), "head": nn.Linear(64, 5000, dtype=torch.bfloat16)}
    )


TABLE = """\
parameter           shape      dtype     state       kept as                why                         bytes
tokens.weight       100 x 64   float32   exp_avg     32 bits                module StableEmbedding     25,600
                                         exp_avg_sq  32 bits                module StableEmbedding     25,600
tokens.norm.weight  64         float32   exp_avg     32 bits                module StableEmbedding        256
                                         exp_avg_sq  32 bits                module StableEmbedding        256
tokens.norm.bias    64         float32   exp_avg     32 bits                module StableEmbedding        256
                                         exp_avg_sq  32 bits                module StableEmbedding        256
head.weight         5000 x 64  bfloat16  exp_avg     B128/DE@4s             override 'head.w*'        170,000
                                         exp_avg_sq  32 bits                override 'head.w*'      1,280,000
head.bias           5000       bfloat16  exp_avg     B256/DE-sym@8s         state_quantizers            5,080
                                         exp_avg_sq  B256/geometric@8u+qsr  state_quantizers            5,080

1,512,384 predicted bytes of states for 331,528 parameters: 18.25 bits per state element, 4.56 bytes per parameter
2,652,224 bytes in 32 bits: 32.00 bits per state element, 8.00 bytes per parameter"""  # noqa: E501


def test_the_table() -> None:
    optimizer = AdamW8bit(
        net().named_parameters(), overrides={"head.w*": {"exp_avg": "B128/DE@4s"}}
    )
    memory = optimizer.memory()
    assert str(memory) == repr(memory) == TABLE
    after_a_step(optimizer)
    assert str(optimizer.memory()) == TABLE.replace("predicted bytes", "bytes")


def test_rows_and_totals_in_a_script() -> None:
    memory = AdamW4bit(net().parameters()).memory()
    assert len(memory) == len(list(memory)) == 10
    row = memory.rows[6]
    assert dataclasses.asdict(row) == {
        "parameter": "group 0, number 3",
        "shape": (5000, 64),
        "dtype": "bfloat16",
        "state": "exp_avg",
        "quantizer": "B64xbf16/mu-law10:linear0@5s+qsr",
        "why": "state_quantizers",
        "nbytes": 210_000,
        "predicted": True,
        "count": 1,
    }
    assert memory.nbytes == sum(row.nbytes for row in memory)
    assert memory.bytes_per_parameter == memory.nbytes / memory.numel
    assert memory.bits_per_state_element == 32 * memory.nbytes / memory.nbytes_in_32_bits


class Layers(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.first = nn.Linear(10, 10)
        self.layers = nn.ModuleList(nn.Linear(80, 80) for _ in range(number))


def test_layers_of_a_long_model_share_rows() -> None:
    small = AdamW8bit(Layers(19).named_parameters()).memory()
    assert "layers.18.bias" in str(small)
    optimizer = AdamW8bit(Layers(30).named_parameters(), overrides={"layers.7.*": "4bit"})
    memory = optimizer.memory()
    assert len(memory) == 2 * 2 * 31
    lines = str(memory).splitlines()
    assert [line.split("  ")[0] for line in lines if line[0:1].strip()][1:-2] == [
        "first.weight",
        "first.bias",
        "layers.*.weight (x29)",
        "layers.*.bias (x30)",
        "layers.7.weight",
    ]
    assert memory.rows[4].nbytes == 6500
    assert f"{29 * 6500:,}" in lines[5]


def test_no_parameters_and_frozen_ones() -> None:
    layer = nn.Linear(80, 70)
    layer.weight.requires_grad_(False)
    memory = AdamW8bit(layer.named_parameters()).memory()
    assert {row.parameter for row in memory} == {"bias"}
    assert memory.numel == 70
    layer.bias.requires_grad_(False)
    memory = AdamW8bit(layer.named_parameters()).memory()
    assert (len(memory), memory.bytes_per_parameter, memory.bits_per_state_element) == (0, 0, 0)
    assert "0 bytes of states for 0 parameters" in str(memory)


def test_only_states_that_are_used_are_foreseen_and_all_that_are_there_counted() -> None:
    p = nn.Parameter(torch.randn(80, 80))
    assert len(SGD([p]).memory()) == 0
    optimizer = RMSprop8bit([p], momentum=0.9)
    assert [row.state for row in optimizer.memory()] == ["square_avg", "momentum_buffer"]
    after_a_step(optimizer)
    optimizer.param_groups[0]["momentum"] = 0
    memory = optimizer.memory()
    assert [(row.state, row.why) for row in memory] == [
        ("square_avg", "state_quantizers"), ("momentum_buffer", "no longer used")]  # fmt: skip
    assert memory.nbytes == optimizer.state_nbytes == 2 * 6500


def test_states_that_the_next_step_will_change() -> None:
    p = nn.Parameter(torch.randn(80, 80))
    optimizer = AdamW([("w", p)], state_quantizers={"exp_avg": "B64/DE-sym@8s"})
    after_a_step(optimizer)
    optimizer.param_groups[0]["state_quantizers"] = {"exp_avg_sq": "B64/DE-0@8u"}
    assert [(row.quantizer, row.why) for row in optimizer.memory()] == [
        ("B64/DE-sym@8s", "32 bits from the next step: no quantizer for exp_avg"),
        (None, "B64/DE-0@8u from the next step: state_quantizers"),
    ]
    assert optimizer.memory().nbytes == optimizer.state_nbytes
    after_a_step(optimizer)
    assert [row.quantizer for row in optimizer.memory()] == [None, "B64/DE-0@8u"]
    assert optimizer.memory().nbytes == optimizer.state_nbytes


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_parameter_that_is_listed_twice_counts_once() -> None:
    param, small = nn.Parameter(torch.zeros(64, 128)), nn.Parameter(torch.zeros(8192))
    optimizer = AdamW8bit([param, small, param])
    memory = optimizer.memory()
    assert memory.numel == 2 * 8192
    assert [row.parameter for row in memory][::2] == ["group 0, number 0", "group 0, number 1"]
    after_a_step(optimizer)
    assert optimizer.memory().nbytes == memory.nbytes == optimizer.state_nbytes
