"""Two choices side by side resolve as an optimizer resolves them, and cost what a replay says."""

from __future__ import annotations

import math

import pytest
import torch

from qmaps.analyze import recommend
from qmaps.analyze.compare import choices
from qmaps.errors import BadValueError
from qmaps.optim import AdamW, Choice

FOUR, EIGHT = "B128/DE@4s + B128/DE-0@4u", "B256/DE@8s + B256/DE-0@8u"
SHAPES = {"layers.0.w": (48, 128), "layers.1.w": (96, 128), "head[0]": (64, 128), "small": (30,)}


def states() -> dict[str, dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    found = {}
    for name, shape in SHAPES.items():
        v = torch.rand(shape, generator=draw) * 1e-6
        m = torch.randn(shape, generator=draw) * v.sqrt() * 0.3
        found[name] = {"exp_avg": m, "exp_avg_sq": v}
    return found


@pytest.mark.parametrize(
    "choice",
    [
        Choice("8bit"),
        Choice(None, {"layers.*": FOUR, "layers.1.w": "8bit"}),
        Choice(FOUR, {"head[[]0]": {"exp_avg": "B64/DE@5s"}, "*": "8bit"}),
        Choice("4bit", min_quantized_size=0),
    ],
)
def test_parameters_get_what_an_optimizer_gives_them(choice: Choice) -> None:
    weights = [(name, torch.nn.Parameter(torch.ones(shape))) for name, shape in SHAPES.items()]
    memory = AdamW(weights, **choice.kwargs).memory()
    found = choices(choice, Choice(None), states(), steps=2)
    rows = found.parameters.set_index("parameter")
    for name in SHAPES:
        kept = [row.quantizer or "32-bit" for row in memory if row.parameter == name][:2]
        assert rows.loc[name, "A"] == " + ".join(kept)
    assert found.summary.loc[0, "nbytes"] == memory.nbytes
    assert found.summary.loc[1, "nbytes"] == memory.nbytes_in_32_bits
    assert rows["bytes_A"].sum() == memory.nbytes
    assert (rows["differs"] == (rows["A"] != rows["B"])).all()


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_the_step_cost_is_that_of_the_recommendation(share: float) -> None:
    given = states()
    # A parameter of one row, which is always replayed whole.
    given["small"] = {name: x.reshape(1, -1) * 0.1 for name, x in given["layers.0.w"].items()}
    options = {"steps": 8, "share": share}
    found = recommend.run(given, bits=6.3, candidates=[FOUR, EIGHT], **options)
    assert found.choice.overrides
    both = choices(found.choice, Choice("8bit"), given, **options).summary.set_index("choice")
    assert both.loc["A", "nbytes"] == found.nbytes
    assert both.loc["A", "step_cost"] == pytest.approx(found.step_cost)
    assert both.loc["A", "loss"] == pytest.approx(found.loss)
    assert both.loc["A", ["verdict", "reason"]].tolist() == [found.verdict, found.reason]
    assert both.loc["B", "step_cost"] < both.loc["A", "step_cost"]
    assert both["gradients"].tolist() == ["simulated", "simulated"]


def test_without_states_patterns_stand_beside_each_other() -> None:
    a = Choice("8bit", {"head[[]0]": None, "x.*": "4bit"})
    b = Choice("8bit", {"head*": None, "y.*": "4bit"})
    rows = choices(a, b).parameters.set_index("parameter")
    assert list(rows.index) == ["head[[]0]", "x.*", "head*", "y.*", "all others"]
    assert rows["differs"].tolist() == [False, True, True, True, False]
    assert rows.loc["x.*", "B"] == rows.loc["head*", "A"] == "depends"
    assert math.isnan(rows.loc["x.*", "bits_B"])
    assert rows.loc["all others", "bits_A"] == 8.125
    plain = choices(a, Choice("8bit")).parameters.set_index("parameter")
    assert plain.loc["x.*", "B"] == EIGHT  # it has no overrides
    assert choices(a, b).summary.empty


def test_only_adams_states() -> None:
    with pytest.raises(BadValueError) as caught:
        choices(Choice({"momentum_buffer": "B256/DE@8s"}, optimizer="SGD"), Choice("8bit"))
    assert str(caught.value) == (
        "the choice for SGD has quantizers for 'momentum_buffer'; only those of Adam's exp_avg and "
        "exp_avg_sq can be compared"
    )
