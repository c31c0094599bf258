"""Monitors of quantized states beside training."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qmaps
from qmaps import lpmm, optim
from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.capture import Monitor, Thresholds
from qmaps.capture.monitor import window
from qmaps.capture.monitor.measures import of_states
from qmaps.engines import masters
from qmaps.errors import QmapsError, StateWarning
from tests.training.runs import EVERY, assert_same, gradients, make, net

PAIR = "B64/DE@8s + B64/DE@4u"
LR, EPS, BETAS = 1e-2, 1e-8, (0.9, 0.999)


def steps(optimizer: torch.optim.Optimizer, count: int, first: int = 0) -> None:
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for number in range(first, first + count):
        gradients(params, number)
        optimizer.step()


def adam(params: Any, **options: Any) -> optim.AdamW:
    return optim.AdamW(params, lr=LR, min_quantized_size=0, **options)


@EVERY
def test_training_has_the_same_bits_with_a_monitor(kind: str, tmp_path: Path) -> None:
    plain, watched = net(), net()
    ours = make(kind, plain.parameters(), weight_decay=0.1)
    theirs = make(kind, watched.parameters(), weight_decay=0.1)
    steps(ours, 5)
    with Monitor(theirs, tmp_path / "m.csv", every=2, thresholds=None) as monitor:
        steps(theirs, 5)
    assert {row["step"] for row in monitor.rows} == {4}
    assert_same(ours, theirs)
    for expected, actual in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(expected, actual)


class Oracle:
    """Adam's moments by hand, on all elements, from the states of the optimizer."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.first = {name: state[name].clone() for name in ("exp_avg", "exp_avg_sq")}
        self.m, self.v = (t.dequantize() for t in self.first.values())

    def step(self, g: Tensor) -> None:
        self.m = self.m * BETAS[0] + g * torch.tensor(1 - BETAS[0]).float()
        self.v = self.v * BETAS[1] + (g * g) * torch.tensor(1 - BETAS[1]).float()


def test_every_measure_is_that_of_its_definition() -> None:
    parameter = nn.Parameter(torch.zeros(24, 32))
    optimizer = adam([("w", parameter)], state_quantizers=PAIR)
    monitor = Monitor(optimizer, None, every=8, window=4, thresholds=None)
    grads = [torch.randn(24, 32, generator=torch.Generator().manual_seed(n)) ** 3 for n in range(8)]
    for number, g in enumerate(grads):
        if number == 4:
            drifting = Oracle(optimizer.state[parameter])
        if number == 7:
            last = Oracle(optimizer.state[parameter])
        parameter.grad = g
        optimizer.step()
        for oracle in (drifting, last) if number == 7 else (drifting,) if number >= 4 else ():
            oracle.step(g)
    results = {row["state"]: row for row in monitor.rows}
    assert [row["step"] for row in monitor.rows] == [8, 8]
    decoded = {}
    for name, x, y in (
        ("exp_avg", drifting.m, last.m),
        ("exp_avg_sq", drifting.v, last.v),
    ):
        row, t, first = results[name], optimizer.state[parameter][name], drifting.first[name]
        q = decoded[name] = t.dequantize()
        assert (row["parameter"], row["quantizer"], row["numel"]) == ("w", t.quantizer.spec, 768)
        noise = (y.double() - q.double()).square().sum()
        assert row["sqnr_db"] == pytest.approx(
            float(10 * (y.double().square().sum() / noise).log10())
        )
        unchanged = first.codes() == t.codes()
        book, scale = t.quantizer.map.codebook(), first.scales[0].repeat_interleave(64).view(24, 32)
        codes, movement = first.codes(), x - first.dequantize()
        beside = (codes + torch.where(movement > 0, 1, -1)).clamp(0, len(book) - 1)
        gap = (book[beside] * scale - first.dequantize()).abs()
        moved = (movement.abs() > gap) & (gap > 0)
        assert row["held_share"] == float(unchanged.double().mean())
        assert row["moved_share"] == float(moved.double().mean()) > 0.05
        assert row["stalled_share"] == pytest.approx(float((moved & unchanged).sum() / moved.sum()))
        end = t.codes() == len(book) - 1
        end |= (t.codes() == 0) & t.quantizer.map.signed
        new = t.scales[0].repeat_interleave(64).view(24, 32)
        assert row["saturated_share"] == float((end & (y.abs() < new)).double().mean())
    assert results["exp_avg_sq"]["stalled_share"] > 0
    m, v = decoded.values()
    zeros = float(((v == 0) & (m != 0) & (last.v > 0)).double().mean())
    assert results["exp_avg_sq"]["zero_point_share"] == zeros > 0.01

    def update(m: Tensor, v: Tensor) -> Tensor:
        corrected = (v.double() / (1 - BETAS[1] ** 8)).sqrt() + EPS
        return m.double() / (1 - BETAS[0] ** 8) / corrected

    u, w = update(last.m, last.v), update(m, v)
    relative = ((w - u) / u).abs().reshape(-1)
    assert results["exp_avg_sq"]["update_mean_rel_error"] == pytest.approx(
        float(relative.mean()), 1e-3
    )
    assert results["exp_avg_sq"]["update_median_rel_error"] == pytest.approx(
        float(relative.median()), 1e-3
    )
    assert math.isnan(results["exp_avg"]["zero_point_share"])


ELEMENT_WISE: dict[str, Callable[[Any], optim.QuantizedOptimizer]] = {
    "AdamW": lambda p: adam(p, state_quantizers="8bit", weight_decay=0.3),
    "Adam": lambda p: optim.Adam8bit(p, min_quantized_size=0, weight_decay=0.3, maximize=True),
    "SGD": lambda p: optim.SGD8bit(p, 0.1, 0.9, min_quantized_size=0, weight_decay=0.3),
    "Lion": lambda p: optim.Lion8bit(p, min_quantized_size=0),
    "AdEMAMix": lambda p: optim.AdEMAMix8bit(p, min_quantized_size=0, t_alpha=9, t_beta3=9),
    "RMSprop": lambda p: optim.RMSprop8bit(p, min_quantized_size=0, momentum=0.9, centered=True),
    "Adagrad": lambda p: optim.Adagrad8bit(p, min_quantized_size=0, lr_decay=0.1),
}


@pytest.mark.parametrize("master_weights", [False, True, "bf16+8", "bf16+16"])
def test_exact_steps_begin_with_master_weights(
    master_weights: bool | str, monkeypatch: Any
) -> None:
    starts: list[Tensor] = []
    of = window.Exact

    def spy(*args: Any) -> Any:
        starts.append(args[3].clone())
        return of(*args)

    monkeypatch.setattr(window, "Exact", spy)
    random = torch.Generator().manual_seed(1)
    parameter = nn.Parameter(torch.randn(48, 48, generator=random).bfloat16())
    options = {"state_quantizers": "8bit", "weight_decay": 0.3}
    optimizer = adam([parameter], **options, master_weights=master_weights)
    steps(optimizer, 2)
    expected = masters.exact(parameter.detach(), optimizer.state[parameter]).clone()
    assert torch.equal(expected, parameter.float()) == (master_weights is False)
    with Monitor(optimizer, None, every=1, window=1, sample=10**4, thresholds=None):
        steps(optimizer, 1)
    assert torch.equal(starts[0].view(48, 48), expected)


@pytest.mark.parametrize("name", ELEMENT_WISE)
def test_the_exact_step_encodes_to_the_codes_of_the_optimizer(name: str, monkeypatch: Any) -> None:
    measured: list[tuple[QuantizedTensor, Tensor]] = []

    def spy(first: Any, last: Any, drifted: Any, exact: Any, *arguments: Any) -> Any:
        measured.append((last, exact))
        return of_states(first, last, drifted, exact, *arguments)

    monkeypatch.setattr(window, "of_states", spy)
    parameter = nn.Parameter(torch.randn(48, 48, generator=torch.Generator().manual_seed(1)))
    optimizer = ELEMENT_WISE[name]([parameter])
    if name == "Adam":  # engines that take part in torch.amp divide by the scale of a GradScaler
        monkeypatch.setenv("QMAPS_BACKEND", "reference")
        optimizer.grad_scale = torch.tensor(8.0)
    with Monitor(optimizer, None, every=3, window=2, sample=10**4, thresholds=None):
        steps(optimizer, 3)
    assert measured
    for last, exact in measured:
        states = optimizer.state[parameter].items()
        ((name, t),) = (
            (name, t)
            for name, t in states
            if is_quantized(t) and torch.equal(t.packed, last.packed)
        )
        key = RoundingKey(state=list(type(optimizer).states).index(name), step=3)
        assert torch.equal(t.quantizer.quantize(exact.view(48, 48), key=key).packed, t.packed)


def is_quantized(t: object) -> bool:
    return isinstance(t, QuantizedTensor)


def test_skipped_steps_and_missing_gradients_are_not_measured() -> None:
    model = net()
    optimizer = adam(model.named_parameters(), state_quantizers="8bit", nonfinite="skip")
    weight = model[0].weight
    with Monitor(optimizer, None, every=4, window=2, names=model, thresholds=None) as monitor:
        steps(optimizer, 2)
        gradients(model.parameters(), 9)
        weight.grad[0, 0] = float("nan")
        optimizer.step()  # skipped
        steps(optimizer, 1)
        assert monitor.rows == []  # it was step 3
        steps(optimizer, 1)
        assert {row["step"] for row in monitor.rows} == {4}
        steps(optimizer, 3)
        gradients(model.parameters(), 10)
        weight.grad = None
        optimizer.step()
    assert {row["step"] for row in monitor.rows} == {8}
    assert "0.weight" not in {row["parameter"] for row in monitor.rows}
    assert {"2.weight", "0.bias"} <= {row["parameter"] for row in monitor.rows}


def test_parameters_that_train_one_after_the_other_are_measured() -> None:
    layers = [nn.Parameter(torch.zeros(24, 32)) for _ in range(3)]
    optimizer = adam([(str(n), p) for n, p in enumerate(layers)], state_quantizers="8bit")
    steps: list[tuple[int, str]] = []
    with Monitor(optimizer, None, every=4, window=2) as monitor:
        for layer in layers:
            for number in range(8):
                gradients([layer], number)
                optimizer.step()
                layer.grad = None
                steps += [(row["step"], row["parameter"]) for row in monitor.rows]
                monitor.rows = []
    assert steps[::2] == steps[1::2]  # of both states
    assert steps[::2] == [(4, "0"), (8, "0"), (12, "1"), (16, "1"), (20, "2"), (24, "2")]


def test_gradients_that_are_gone_after_the_step_are_not_taken_as_zeros() -> None:
    optimizer = make("AdamW8bit", net().parameters())
    optimizer.register_step_post_hook(lambda stepped, *_: stepped.zero_grad())
    with (
        Monitor(optimizer, None, every=2) as monitor,
        pytest.warns(
            UserWarning, match="the monitor measured nothing at step 2: no chosen"
        ) as caught,
    ):
        steps(optimizer, 6)
    assert monitor.rows == []
    assert len(caught) == 1


def test_other_rules_have_the_measures_that_need_no_rule() -> None:
    model = net()
    optimizer = make("LAMB8bit", model.parameters())
    with Monitor(optimizer, None, every=3) as monitor:
        steps(optimizer, 3)
    row = next(row for row in monitor.rows if row["state"] == "exp_avg_sq")
    assert 0 <= row["held_share"] < 1
    assert row["zero_point_share"] == 0
    assert math.isnan(row["sqnr_db"])


def test_a_map_that_is_fitted_again_changes_no_measure_of_others() -> None:
    def measured(*, refit: bool) -> list[dict[str, Any]]:
        parameters = [nn.Parameter(torch.ones(64, 8)) for _ in range(2)]
        optimizer = adam(parameters, state_quantizers=PAIR)
        steps(optimizer, 1)
        (group,) = optimizer.param_groups
        opened = window.Window(optimizer, [(str(p.shape), p, group) for p in parameters], 512)
        state = optimizer.state[parameters[0]]

        def fit() -> None:
            if refit:
                m = state["exp_avg"].dequantize()
                state["exp_avg"] = qmaps.quantizer("B64/linear@8s").quantize(m)

        fit()
        opened.before_last()
        steps(optimizer, 1, first=1)
        opened.after_step()
        fit()
        return opened.rows()

    rows = measured(refit=True)
    assert math.isnan(rows[0]["held"])
    assert repr(rows[2:]) == repr(measured(refit=False)[2:])


def test_only_a_state_beside_the_moments_is_quantized() -> None:
    specs = {"exp_avg": None, "exp_avg_sq": None, "exp_avg_slow": "B64/DE@8s"}
    parameter = nn.Parameter(torch.ones(64, 8))
    optimizer = optim.AdEMAMix([parameter], state_quantizers=specs, min_quantized_size=0)
    with Monitor(optimizer, None, every=3) as monitor:
        steps(optimizer, 3)
    assert [row["state"] for row in monitor.rows] == ["exp_avg_slow"]


def test_an_error_of_the_end_does_not_hide_that_of_the_training() -> None:
    optimizer, training = make("AdamW8bit", net().parameters()), ValueError("training")
    monitor = Monitor(optimizer, None)
    monitor._ranks._error = OSError("held")
    monitor.__exit__(ValueError, training, None)
    assert training.__notes__ == ["Monitor: held"]
    monitor._ranks._error = OSError("held")
    with pytest.raises(OSError, match=r"^held$"):
        monitor.__exit__(None, None, None)


def test_a_warning_for_each_state_and_cause() -> None:
    model = net()
    optimizer = adam(model.parameters(), state_quantizers="B64/DE@4s + B64/DE@4u")
    strict = Thresholds(sqnr_db=100.0, update_median_rel_error=None, stalled_share=None)
    with (
        warnings.catch_warnings(record=True) as caught,
        Monitor(optimizer, None, every=2, names=model, thresholds=strict),
    ):
        warnings.simplefilter("always")
        steps(optimizer, 6)
    assert all(warning.category is StateWarning for warning in caught)
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == len({text.partition("=")[0] + text.split("'")[1] for text in texts})
    (zeros,) = (text for text in texts if text.startswith("zero_point_share"))
    assert "of state 'exp_avg_sq' (B64/DE@4u) of '" in zeros
    assert "at step 2 is above 0, as in " in zeros
    assert zeros.endswith("; use a map without 0, such as DE-0 or linear")
    assert sum(text.startswith("sqnr_db") for text in texts) == 2


def fails(make_one: Callable[[], object]) -> str:
    with pytest.raises(QmapsError) as caught:
        make_one()
    return str(caught.value)


def test_bad_input_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    model, out = net(), tmp_path / "m.csv"
    eight = make("AdamW8bit", model.named_parameters())
    cases = {
        "optimizer=AdamW has no quantized states; a monitor needs at least one (state_quantizers, "
        "min_quantized_size)": lambda: Monitor(adam(model.parameters()), out),
        "optimizer must be one of qmaps.optim, got AdamW, which has no quantized states": (
            lambda: Monitor(torch.optim.AdamW(model.parameters()), out)
        ),
        "optimizer must be one of qmaps.optim, got CPUOffloadOptimizer; give its host_optimizer": (
            lambda: Monitor(optim.CPUOffloadOptimizer(model.parameters()), out)
        ),
        "optimizer must be one of qmaps.optim, got LPMMSGD, which drops its gradients within the "
        "step": lambda: Monitor(lpmm.LPMMSGD(model.parameters(), lr=0.1), out),
        "parameters='head.*' matches no parameter; the names are 0.weight, 0.bias, 2.weight, "
        "2.bias": lambda: Monitor(eight, out, parameters="head.*"),
        "names has none of the optimizer's parameters; pass the model that the optimizer trains": (
            lambda: Monitor(eight, out, names=net())
        ),
        "every=0 must be an int of at least 1": lambda: Monitor(eight, out, every=0),
        "window=20 must be at most every=10": lambda: Monitor(eight, out, every=10, window=20),
        "sample=4 must be an int of at least 8": lambda: Monitor(eight, out, sample=4),
        "log=3 must be a function of values and step, a SummaryWriter, or an object with a method "
        "log(values, step=...)": lambda: Monitor(eight, out, log=3),
        "thresholds=0.5 must be Thresholds or None": lambda: Monitor(eight, out, thresholds=0.5),
        "sqnr_db='10' must be a number or None": lambda: Thresholds(sqnr_db="10"),
        "sqnr_db=nan must be a finite number or None": lambda: Thresholds(sqnr_db=math.nan),
    }
    assert {message: fails(case) for message, case in cases.items()} == {m: m for m in cases}
    assert list(tmp_path.iterdir()) == []
    assert isinstance(eight.param_groups[0]["params"][0], nn.Parameter)
    assert not eight._optimizer_step_post_hooks


def test_it_is_a_name_of_the_package() -> None:
    assert qmaps.Monitor is Monitor
    assert "Monitor" in dir(qmaps)


def stuck(spec: str, window: int, make: Any = adam, state: str = "exp_avg_sq") -> list[float]:
    """`stuck_share` before the gradients of every other element fall tenfold, and after."""
    p, draw = nn.Parameter(torch.zeros(512)), torch.Generator().manual_seed(0)
    optimizer = make([("w", p)], state_quantizers={state: spec})
    shares = []
    with Monitor(optimizer, None, every=40, window=window, thresholds=None) as monitor:
        for step in range(80):
            p.grad = torch.randn(512, generator=draw)
            p.grad[::2] *= 0.1 if step >= 40 else 1.0
            p.grad[1::4] = 0.0  # without any gradient
            optimizer.step()
            if step == 0:
                optimizer.state[p][state] = qmaps.quantizer(spec).quantize(torch.ones(512))
            if step % 40 == 39:
                (row,) = (row for row in monitor.rows if row["state"] == state)
                shares.append(row["stuck_share"])
    return shares


def rmsprop(params: Any, **options: Any) -> Any:
    return optim.RMSprop(params, alpha=0.999, min_quantized_size=0, **options)


def slow(params: Any, **options: Any) -> Any:
    return adam(params, betas=(0.9, 0.999), **options)


@pytest.mark.parametrize("window", [5, 40])
@pytest.mark.parametrize(("make", "state"), [(slow, "exp_avg_sq"), (rmsprop, "square_avg")])
def test_second_moments_that_cannot_fall(window: int, make: Any, state: str) -> None:
    before, after = stuck("B256/DE-0@8u", window, make, state)
    assert before < 0.02
    assert after > 0.4
    for spec in ("B256/DE-0@8u+sr", "B256/geometric@8u+qsr"):
        assert stuck(spec, window, make, state) == [0, 0]
    assert stuck("B256/linear@16u", window, make, state)[1] < 0.05  # fine enough to fall


def test_their_warning_names_a_remedy() -> None:
    p = nn.Parameter(torch.zeros(512))
    optimizer = slow([("w", p)], state_quantizers={"exp_avg_sq": "B256/DE-0@8u"})
    p.grad = torch.ones(512)
    optimizer.step()
    v = torch.linspace(0.5, 1, 512)
    optimizer.state[p]["exp_avg_sq"] = qmaps.quantizer("B256/DE-0@8u").quantize(v)
    p.grad[::2] = 0.1
    with warnings.catch_warnings(record=True) as caught, Monitor(optimizer, None, every=5):
        warnings.simplefilter("always")
        for _ in range(9):
            optimizer.step()
    (text,) = (str(warning.message) for warning in caught)
    assert text == (
        "stuck_share=0.496 of state 'exp_avg_sq' (B256/DE-0@8u) of 'w' at step 5 is above 0.25, "
        "as in 1 of 1 parameters; round with +qsr, as in B256/geometric@8u+qsr"
    )
