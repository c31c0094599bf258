"""Updates in units of delta, against cases worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qmaps
from benchmarks.lpmm.update_sizes import Underflow, spacing, watched
from qmaps import lpmm
from qmaps.errors import BadValueError
from reproduction import figures

pytestmark = pytest.mark.slow

# 7 is the largest value and sets the scale: delta is 1 under 4 bits, from -7 to 7.
BEFORE = torch.tensor([7.0, 0.0, 1.0, -2.0, 3.0, 0.0, 0.0, 0.0])
UPDATE = torch.tensor([0.0, 0.25, 0.75, -0.125, 2.0, 0.5625, 0.0, 0.0])


def observed(*, second: bool = False) -> Underflow:
    found = Underflow()
    q = qmaps.quantizer("B4/linear0@4s")
    before = BEFORE.clone()
    before[4:] = 0.0 if second else BEFORE[4:]
    update = UPDATE.clone()
    update[4:] = 0.0 if second else UPDATE[4:]
    wanted = before + update
    found("parameter 'layer.weight'", 1, before, wanted, q.quantize(wanted))
    return found


def test_delta_is_the_distance_between_codes_under_the_new_scale() -> None:
    wanted = torch.tensor([14.0, 3.3, -14.0, 0.0, 0.7, 0.0, 0.1, 0.2, 0.0, 0.0, 0.0, 0.0])
    t = qmaps.quantizer("B4/linear0@4s").quantize(wanted)
    expected = [2.0] * 4 + [0.1] * 4 + [0.0] * 4
    assert spacing(wanted, t).tolist() == pytest.approx(expected)
    uneven = qmaps.quantizer("tensor/power2@4s")
    book = uneven.map.codebook()
    between = (book[5] + book[6]) / 2
    t = uneven.quantize(torch.stack([torch.tensor(1.0), between]))
    assert float(spacing(t.dequantize().new_tensor([1.0, float(between)]), t)[1]) == pytest.approx(
        float(book[6] - book[5])
    )


def test_ratios_of_a_block_of_zeros_leave_it_out() -> None:
    """The first block: moved by 0, 0, 1, 0 of the 0, 1/4, 3/4, 1/8 asked for."""
    (row,) = observed(second=True).ratios().to_dict("records")
    assert row["parameter"] == "layer.weight"
    assert (row["step"], row["numel"], row["updated"]) == (1, 4, 3)
    assert row["bin_change"] == pytest.approx(1 / 4)
    assert row["wanted_change"] == pytest.approx((1 / 4 + 3 / 4 + 1 / 8) / 4)
    assert row["underflow"] == pytest.approx(2 / 3)
    assert row["moved"] == pytest.approx(1 / 3)


def test_a_scale_that_grows_makes_delta_larger() -> None:
    """The second block reaches 5: delta becomes 5/7, and its updates 2.8 and 0.7875 of it."""
    (row,) = observed().ratios().to_dict("records")
    assert row["numel"] == 8
    asked = 1 / 4 + 3 / 4 + 1 / 8 + 2 * 7 / 5 + 0.5625 * 7 / 5
    assert row["wanted_change"] == pytest.approx(asked / 8)
    assert row["bin_change"] == pytest.approx((1 + 2 * 7 / 5 + 1) / 8)
    assert row["moved"] == pytest.approx(3 / 5)


def test_the_distribution_counts_every_element_once() -> None:
    found = observed(second=True)
    frame = found.distribution()
    assert frame["bin_left"].iloc[0] == 0
    assert frame["bin_right"].iloc[-1] == math.inf
    full = frame[frame["count"] > 0]
    # 0; 1/8 and 1/4 begin their bins; 3/4 lies between 1/2 and 1.
    assert full["bin_left"].tolist() == [0, 1 / 8, 1 / 4, 1 / 2]
    assert full["count"].tolist() == [1, 1, 1, 1]
    assert full["cumulative"].tolist() == [0.25, 0.5, 0.75, 1]
    assert found.distribution(steps=[2]).empty
    assert set(found.distribution(steps=[2]).columns) == set(frame.columns)


def test_steps_are_chosen_and_summed() -> None:
    found = Underflow(every=3)
    q = qmaps.quantizer("B4/linear0@4s")
    for step in range(1, 8):
        found("parameter 0", step, BEFORE, BEFORE + UPDATE, q.quantize(BEFORE + UPDATE))
    assert found.ratios()["step"].tolist() == [1, 4, 7]
    assert found.ratios()["parameter"].unique().tolist() == ["0"]
    assert found.distribution()["count"].sum() == 24
    assert found.distribution(steps=range(2, 6))["count"].sum() == 8


@pytest.mark.parametrize("every", [0, True, 1.5])
def test_every_is_a_number_of_steps(every: Any) -> None:
    with pytest.raises(BadValueError) as caught:
        Underflow(every)
    assert str(caught.value) == f"every={every!r} must be an int of at least 1"


def test_updates_that_are_not_finite_do_not_count() -> None:
    found = Underflow()
    wanted = BEFORE + UPDATE
    wanted[5] = float("nan")
    t = qmaps.quantizer("B4/linear0@4s").quantize(BEFORE)
    found("parameter 0", 1, BEFORE, wanted, t)
    assert found.ratios()["numel"].tolist() == [7]


def test_small_updates_of_a_layer_move_it_at_random_alone() -> None:
    """Updates of a tenth of delta: to nearest nothing moves, at random a tenth of the codes."""
    moved = {}
    x = torch.ones(1, 2000)
    x[0, 0] = 0  # what sets the scale stays where it is
    for rounding in ("", "+sr"):
        model = nn.Linear(2000, 1, bias=False)
        with torch.no_grad():
            model.weight.fill_(0.5)
            model.weight[0, 0] = 1.0
        lpmm.convert(model, f"B4096/linear0@8s{rounding}", "B4096/linear0@8s+sr")
        optimizer = lpmm.LPMMSGD(model.named_parameters(), lr=0.1 / 127, momentum=0)
        found = Underflow()
        with watched(found):
            for _ in range(5):
                model(x).sum().backward()
                optimizer.step()
        frame = found.ratios()
        assert frame["underflow"].tolist() == [1.0] * 5
        assert frame["wanted_change"].tolist() == pytest.approx([0.1 * 1999 / 2000] * 5, rel=1e-3)
        moved[rounding] = frame[["bin_change", "moved"]].mean().tolist()
    assert moved[""] == [0, 0]
    assert moved["+sr"] == pytest.approx([0.1, 0.1], abs=0.02)


def test_figures_take_what_was_seen_of_updates_in_low_precision() -> None:
    model = lpmm.convert(nn.Linear(8, 8))
    optimizer = lpmm.LPMMSGD(model.named_parameters(), lr=0.1)
    found = Underflow()
    with watched(found):
        for _ in range(2):
            model(torch.ones(2, 8)).square().mean().backward()
            optimizer.step()
    figure = figures.bin_changes(found.ratios().assign(width="12 bits", setting="stochastic"))
    assert [len(axis.lines[0].get_xdata()) for axis in figure.axes] == [2, 2]
    figure = figures.update_histogram(found.distribution().assign(setting="N = 1"))
    figure.draw_without_rendering()
    assert [len(axis.texts) for axis in figure.axes] == [2, 2]


def test_an_observer_sees_every_update_in_its_block() -> None:
    model = lpmm.convert(nn.Linear(64, 64))
    optimizer = lpmm.LPMMSGD(model.named_parameters(), lr=0.1)
    seen: list[Any] = []

    def observe(name: str, step: int, before: Tensor, wanted: Tensor, after: Any) -> None:
        seen.append((name, step, before, wanted, after.dequantize()))

    def step() -> None:
        model(torch.ones(2, 64)).square().mean().backward()
        optimizer.step()

    step()
    with watched(observe):
        step()
    step()
    assert [found[:2] for found in seen] == [
        (f"parameter '{name}'", 2) for name, _ in model.named_parameters()
    ]
    before, wanted, after = seen[0][2:]
    assert not torch.equal(before, wanted)
    assert (after - wanted).abs().max() < 2 * before.abs().max() / 2047
