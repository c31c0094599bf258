"""Conversion of bitsandbytes' checkpoints, and training in bitsandbytes resumed from ours."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import qmaps
from qmaps.capture.conversion import convert_file, convert_state_dict
from qmaps.errors import BadValueError, CaptureError
from qmaps.maps.base import table
from qmaps.optim import AdamW, AdamW8bit, Lion8bit
from tests.capture.conversion.nets import resumed, trained

bnb = pytest.importorskip("bitsandbytes").optim

WRAPPED = "__bnb_optimizer_quant_state__"

MAKES: list[tuple[Callable[..., Any], dict[str, Any], str | None]] = [
    (bnb.AdamW8bit, {}, None),
    (bnb.AdamW, {"weight_decay": 0.1}, None),
    (bnb.Adam8bit, {}, None),
    (bnb.AdEMAMix8bit, {"t_alpha": 50, "t_beta3": 50}, None),
    (bnb.AdEMAMix, {}, None),
    (bnb.Lion8bit, {}, "lion"),
    (bnb.SGD8bit, {"lr": 1e-2, "momentum": 0.9}, "sgd"),
    (bnb.RMSprop8bit, {}, "rmsprop"),
    (bnb.Adagrad8bit, {}, "adagrad"),
]


def flat(state_dict: dict[str, Any]) -> dict[Any, dict[str, Any]]:
    """States without the wrapping of newer versions."""
    return {
        key: {
            name: value
            for name, value in {**saved, **saved.get(WRAPPED, {})}.items()
            if name != WRAPPED
        }
        for key, saved in state_dict["state"].items()
    }


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """True if two state_dicts hold the same bits under the same names."""
    ours, theirs = flat(a), flat(b)
    assert ours.keys() == theirs.keys()
    for key, saved in ours.items():
        assert saved.keys() == theirs[key].keys()
        for name, value in saved.items():
            expected = theirs[key][name]
            if not (value.equal(expected) if isinstance(value, Tensor) else value == expected):
                return False
    return True


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """Compare weights after five steps of 1e-3 on the same states under the same codebooks.

    A few codes may differ, because the last bits of a product differ.
    """
    error = (actual - expected).abs()
    assert error.quantile(0.99) < 1e-5
    assert error.max() < 3e-4


@pytest.mark.parametrize(("make", "options", "family"), MAKES)
def test_its_states_go_to_qmaps_and_back_bit_for_bit(
    make: Callable[..., Any], options: dict[str, Any], family: str | None
) -> None:
    net, optimizer = trained(make, **options)
    saved = optimizer.state_dict()
    eight = "8bit" in make.__name__
    settings = {"states": None if eight else "32bit", "zeros": "leave"}
    converted, report = convert_state_dict(saved, "qmaps", optimizer=family, **settings)
    assert report.lossless
    assert report.states[0].became == ("B256/bitsandbytes@8s" if eight else "32 bits")
    back, report = convert_state_dict(converted, "bitsandbytes", **settings)
    assert report.lossless
    assert same(back, saved)
    assert back["param_groups"] == saved["param_groups"]
    # It trains on as if nothing had been.
    assert resumed(net, make, back, **options).equal(resumed(net, make, saved, **options))


@pytest.mark.parametrize(
    ("make", "ours", "family"),
    [(bnb.AdamW8bit, AdamW8bit, None), (bnb.Lion8bit, Lion8bit, "lion")],
)
def test_qmaps_trains_on_with_its_codebooks(
    make: Callable[..., Any], ours: Callable[..., Any], family: str | None
) -> None:
    net, optimizer = trained(make)
    saved = optimizer.state_dict()
    converted, _ = convert_state_dict(saved, "qmaps", optimizer=family, zeros="leave")
    assert_near(resumed(net, ours, converted), resumed(net, make, saved))
    loaded = ours(net.named_parameters())
    loaded.load_state_dict(converted)
    optimizer.zero_grad()
    net(torch.ones(1, 64)).sum().backward()
    loaded.step()
    state = loaded.state[net[0].weight]["exp_avg"]
    assert state.quantizer.spec == "B256/bitsandbytes@8s"
    assert table(state.quantizer.map).equal(flat(saved)[0]["qmap1"])


def test_states_of_qmaps_are_carried_over_and_it_trains_on() -> None:
    net, adam = trained(AdamW8bit)
    converted, report = convert_state_dict(adam.state_dict(), "bitsandbytes")
    assert report.lossless
    state = converted["state"][0]
    assert state["qmap2"][-2:].tolist() == [0.9375, 1]
    decoded = state["qmap2"][state["state2"].long()].view(-1, 256) * state["absmax2"][:, None]
    assert decoded.view(80, 64).equal(adam.state[net[0].weight]["exp_avg_sq"].dequantize())
    weights = resumed(net, bnb.AdamW8bit, converted)
    # There the next second moment is rounded to nearest.
    torch.testing.assert_close(
        weights, resumed(net, AdamW8bit, adam.state_dict()), atol=1e-3, rtol=0
    )
    assert convert_state_dict(converted, "qmaps")[1].states[1].became == "B256/geometric@8u"


@pytest.mark.parametrize("states", [None, "8bit", "32bit"])
def test_torch_to_bitsandbytes(states: str | None, tmp_path: Path) -> None:
    net, adam = trained(torch.optim.AdamW)
    torch.save(adam.state_dict(), tmp_path / "in.pt")
    (report,) = convert_file(
        tmp_path / "in.pt", tmp_path / "out.pt", to="bitsandbytes", states=states
    )
    assert report.notes == ()
    converted = torch.load(tmp_path / "out.pt", weights_only=True)
    assert report.lossless == (states == "32bit")
    eight = [row.became for row in report.states if row.parameter == "0.weight"]
    assert eight == (["32 bits"] * 2 if states == "32bit" else ["B256/DE@8s", "B256/DE@8u"])
    weights = resumed(net, bnb.AdamW8bit, converted)
    close = 1e-6 if states == "32bit" else 2e-3
    assert torch.allclose(weights, resumed(net, torch.optim.AdamW, adam.state_dict()), atol=close)
    back, _ = convert_state_dict(converted, "torch")
    assert back["param_groups"][0]["decoupled_weight_decay"] is True
    if states == "32bit":
        assert same(back, adam.state_dict())


def test_zeros_of_its_map_are_raised_and_left() -> None:
    _, adam = trained(torch.optim.AdamW)
    saved = adam.state_dict()
    saved["state"][0]["exp_avg_sq"][0, :10] = saved["state"][0]["exp_avg_sq"].max() * 1e-9
    with_zeros = convert_state_dict(saved, "bitsandbytes", zeros="leave")[0]
    assert convert_state_dict(with_zeros, "qmaps", zeros="leave")[1].lossless
    converted, report = convert_state_dict(with_zeros, "qmaps")
    assert report.states[1].zeros == report.states[1].raised == 10
    q = qmaps.algebra.saved.from_plain(converted["state"][0]["exp_avg_sq"])
    assert q.codes().flatten()[:10].tolist() == [1] * 10
    assert [row.how for row in report.states][:2] == ["same values", "quantized"]


def test_decay_that_is_coupled_is_noted() -> None:
    _, adam = trained(torch.optim.Adam, weight_decay=0.1)
    report = convert_state_dict(adam.state_dict(), "bitsandbytes")[1]
    assert report.notes == (
        "group 0 adds weight_decay=0.1 to gradients, as torch's Adam does; bitsandbytes shrinks "
        "parameters by it, as AdamW does",
    )


def test_a_parameter_kept_in_32_bits_stays_so() -> None:
    _, adam = trained(AdamW8bit, overrides={"0.*": None}, min_quantized_size=500)
    report = convert_state_dict(adam.state_dict(), "bitsandbytes")[1]
    became = {row.parameter: row.became for row in report.states if row.state == "exp_avg"}
    assert became["0.weight"] == "32 bits"
    assert became["2.weight"] == "B256/DE-sym@8s"


@pytest.mark.parametrize("named", [True, False])
def test_its_states_in_32_bits_stay_in_32_bits(named: bool) -> None:
    """Its GlobalOptimManager keeps those of embeddings in 32 bits."""
    net, adam = trained(bnb.AdamW8bit, min_8bit_size=500)
    exact = flat(trained(bnb.AdamW)[1].state_dict())[0]
    exact["state2"][0, :10] = 0
    saved = adam.state_dict()
    saved["state"][0] = exact
    if not named:
        del saved["param_groups"][0]["param_names"]
    converted, report = convert_state_dict(saved, "qmaps")
    assert converted["state"][0]["exp_avg_sq"].equal(exact["state2"])
    assert report.states[1].raised == 0
    assert report.notes == (
        ()
        if named
        else (
            "parameters without names stay in 32 bits (group0.param0); loading quantizes what the "
            "overrides of the loading optimizer do not name",
        )
    )
    # By the checkpoint's overrides, or by the loading optimizer's.
    optimizer = AdamW(net.named_parameters(), overrides=None if named else {"0.weight": None})
    optimizer.load_state_dict(converted)
    assert optimizer.state[net[0].weight]["exp_avg_sq"].equal(exact["state2"])
    assert optimizer.quantizer_of("exp_avg", net[0].weight, optimizer.param_groups[0]) is None
    assert optimizer.state[net[2].weight]["exp_avg"].quantizer.spec == "B256/bitsandbytes@8s"


def test_codebooks_that_differ_get_different_names() -> None:
    net, adam = trained(bnb.AdamW8bit, min_8bit_size=500)
    saved = copy.deepcopy(adam.state_dict())
    second = flat(saved)[2]
    second["qmap1"] = second["qmap1"] * torch.where(second["qmap1"] < 0, 0.5, 1.0)
    saved["state"][2] = second
    converted, report = convert_state_dict(saved, "qmaps", zeros="leave")
    assert report.lossless
    group = converted["param_groups"][0]
    assert group["overrides"]["2.weight"]["exp_avg"] == "B256/bitsandbytes-2@8s"
    loaded = AdamW(net.named_parameters())
    loaded.load_state_dict(converted)
    assert same(convert_state_dict(loaded.state_dict(), "bitsandbytes", zeros="leave")[0], saved)


def refused(saved: dict[str, Any], message: str, **options: Any) -> None:
    with pytest.raises((CaptureError, BadValueError), match=f"^{re.escape(message)}$"):
        convert_state_dict(saved, **{"to": "bitsandbytes", **options})


def test_unsupported_options_are_refused() -> None:
    refused(
        trained(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True)[1].state_dict(),
        "group 0 has nesterov=True, which bitsandbytes does not support; only "
        "nesterov=False can be converted",
    )
    refused(
        trained(torch.optim.AdamW, maximize=True)[1].state_dict(),
        "group 0 has maximize=True, which bitsandbytes does not support; only "
        "maximize=False can be converted",
    )
    refused(
        trained(torch.optim.AdamW, amsgrad=True)[1].state_dict(),
        "parameter '0.weight' has the state max_exp_avg_sq, which bitsandbytes does not have",
    )
    refused(
        trained(AdamW)[1].state_dict(),
        "states='4bit' is not available in bitsandbytes; allowed are 8bit, 32bit",
        states="4bit",
    )
    lion = trained(bnb.Lion8bit)[1].state_dict()
    message = (
        "the checkpoint is of a bitsandbytes optimizer with one state and does not say "
        "which; set optimizer to one of lion, sgd, rmsprop, adagrad"
    )
    refused(lion, message, to="qmaps")
    refused(lion, message + "; adam has more states", to="qmaps", optimizer="adam")


def change(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda saved: saved.update({name: value})


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (change("qmap1", torch.zeros(1)), "the codebook must have 2 to 256 values, got 1"),
        (change("qmap1", torch.full((256,), float("inf"))), "the codebook must be finite"),
        (change("qmap1", "x"), "the codebook must be a float32 vector, got str"),
        (
            change("qmap1", torch.zeros(2, 128)),
            "the codebook must be a float32 vector, got torch.float32 of shape (2, 128)",
        ),
        (
            change("qmap1", torch.linspace(-1, 1, 200)),
            "a code is {largest}, but the codebook has only 200 values",
        ),
        (change("absmax1", -torch.ones(20)), "a scale is negative"),
        (change("absmax1", torch.ones(7)), "absmax1 has 7 values, which fits no block size"),
        (change("absmax1", 3), "absmax1 must be a tensor, got int"),
        (lambda saved: saved.pop("absmax1"), "the 8-bit states lack absmax1"),
        (
            change("state1", torch.zeros(3, 80, 64)),
            "state1 has shape (3, 80, 64); it must consist of two halves",
        ),
        (change("state1", 3), "state1 must be a tensor, got int"),
    ],
)
def test_damaged_states_are_refused(damage: Callable[[dict[str, Any]], None], reason: str) -> None:
    _, adam = trained(bnb.AdamW8bit)
    saved = copy.deepcopy(adam.state_dict())
    inside = saved["state"][0][WRAPPED]
    largest = int(inside["state1"].max())
    damage(inside)
    refused(
        saved,
        f"the states of '0.weight' cannot be converted: {reason.format(largest=largest)}",
        to="qmaps",
    )
