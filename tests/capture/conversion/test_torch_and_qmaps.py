"""Conversion between torch and qmaps, and rules of every conversion."""

import copy
import re

import pytest
import torch

import qmaps
from qmaps.algebra.saved import from_plain
from qmaps.capture.conversion import convert_state_dict
from qmaps.errors import BadTypeError, BadValueError, CaptureError
from qmaps.optim import (
    AdamW,
    AdamW8bit,
    AdEMAMix8bit,
    Lion8bit,
    NAdam,
    NAdam8bit,
    RMSprop8bit,
    SGD8bit,
)
from tests.capture.conversion.nets import resumed, train, trained, weights


def test_a_converted_torch_checkpoint_equals_one_loaded_by_qmaps() -> None:
    net, adam = trained(torch.optim.AdamW)
    converted, report = convert_state_dict(adam.state_dict(), "qmaps", zeros="leave")
    weights = resumed(net, AdamW8bit, converted)
    # Random numbers of a file have no parameter's number.
    torch.testing.assert_close(
        weights, resumed(net, AdamW8bit, adam.state_dict()), atol=1e-3, rtol=0
    )
    rows = {(row.parameter, row.state): row for row in report.states}
    row = rows["0.weight", "exp_avg_sq"]
    assert (row.was, row.became, row.how) == ("32 bits", "B256/geometric@8u+qsr", "quantized")
    v = adam.state_dict()["state"][0]["exp_avg_sq"]
    error = (qmaps.quantizer("B256/geometric@8u+qsr").quantize(v).dequantize() - v).abs().double()
    assert row.max_abs_error == error.max() > 0
    assert row.mean_rel_error == pytest.approx(float((error / v).mean()))
    assert rows["0.bias", "exp_avg"].how == "same values"
    assert not report.lossless


def test_to_torch_decodes_and_torch_trains_on() -> None:
    net, adam = trained(AdamW8bit, maximize=True)
    converted, report = convert_state_dict(adam.state_dict(), "torch")
    assert converted["param_groups"][0]["maximize"] is True
    assert report.lossless
    assert [row.became for row in report.states] == ["32 bits"] * 8
    expected = adam.state[net[0].weight]["exp_avg"].dequantize()
    assert converted["state"][0]["exp_avg"].equal(expected)
    assert not set(converted["param_groups"][0]) & {"state_quantizers", "quantize", "seed"}
    # 32-bit qmaps steps as torch does, and from the same states.
    weights = resumed(net, torch.optim.AdamW, converted, foreach=False)
    in_qmaps = resumed(net, AdamW, converted, state_quantizers=None)
    assert torch.allclose(weights, in_qmaps, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("states", ["32bit", "8bit", "paper-4bit"])
def test_qmaps_to_qmaps_changes_quantizers(states: str) -> None:
    net, adam = trained(AdamW8bit)
    converted, _ = convert_state_dict(adam.state_dict(), "qmaps", states=states)
    loaded = AdamW(net.named_parameters())
    loaded.load_state_dict(converted)
    wanted = qmaps.optim.PRESETS[states].specs(("exp_avg", "exp_avg_sq"), {"exp_avg"})
    for name, spec in wanted.items():
        state = loaded.state[net[0].weight][name]
        assert (None if isinstance(state, torch.Tensor) else state.quantizer.spec) == spec


def test_a_checkpoint_of_qmaps_to_qmaps_is_the_same() -> None:
    net, adam = trained(
        AdamW8bit, overrides={"0.*": {"exp_avg": "B64/nf4@4s"}}, stochastic_rounding=True
    )
    converted, report = convert_state_dict(adam.state_dict(), "qmaps")
    assert report.lossless
    assert resumed(net, AdamW8bit, converted).equal(resumed(net, AdamW8bit, adam.state_dict()))


def test_own_codebooks_are_learned_from_a_checkpoint() -> None:
    codebook = qmaps.Codebook(torch.linspace(-1, 1, 200), label="mine")
    q = qmaps.normalize.BlockWise(64) / codebook
    net, adam = trained(AdamW, state_quantizers={"exp_avg": q})
    straight = copy.deepcopy((net, adam))
    train(*straight, range(5, 10))
    assert resumed(net, AdamW8bit, adam.state_dict()).equal(weights(straight[0]))
    # Codebooks of a refused checkpoint are forgotten again.
    loaded, refused = AdamW(net.parameters()), copy.deepcopy(adam.state_dict())
    refused["state"][0]["step"] = -1
    with pytest.raises(BadValueError, match="step=-1"):
        loaded.load_state_dict(refused)
    with pytest.raises(BadValueError, match="unknown map 'mine'"):
        loaded.add_param_group({"params": [], "state_quantizers": {"exp_avg": "B64/mine@8s"}})
    loaded.load_state_dict(adam.state_dict())
    extra = [("extra", torch.nn.Parameter(torch.zeros(2)))]
    loaded.add_param_group({"params": extra, "state_quantizers": {"exp_avg": "B64/mine@8s"}})
    unlike = qmaps.normalize.BlockWise(64) / qmaps.Codebook(
        torch.linspace(-1, 1, 199), label="mine"
    )
    message = (
        "state_dict has exp_avg quantized with B64/mine@8s, but its codebook differs from "
        "the one that is known by that name"
    )
    with pytest.raises(BadValueError, match=f"^{re.escape(message)}$"):
        AdamW(net.parameters(), state_quantizers={"exp_avg": unlike}).load_state_dict(
            adam.state_dict()
        )


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (SGD8bit, {"momentum": 0.9, "lr": 1e-2}),
        (RMSprop8bit, {"momentum": 0.5, "centered": True}),
        (AdEMAMix8bit, {}),
        (Lion8bit, {}),
        (NAdam8bit, {"momentum_decay": 0.02}),
    ],
)
def test_other_families_go_there_and_back(make: type, options: dict[str, float]) -> None:
    net, optimizer = trained(make, **options)
    plain, report = convert_state_dict(optimizer.state_dict(), "torch")
    assert report.lossless
    back, _ = convert_state_dict(plain, "qmaps", states="8bit", zeros="leave")
    assert resumed(net, make, back).equal(resumed(net, make, plain, **options))


def test_states_from_before_the_first_step_go_to_torch() -> None:
    saved = torch.optim.Adagrad([torch.nn.Parameter(torch.ones(4))]).state_dict()
    assert convert_state_dict(saved, "torch")[0]["state"][0]["step"] == 0


def test_nadam_goes_on_in_torch() -> None:
    options = {"weight_decay": 0.1, "decoupled_weight_decay": True}
    net, optimizer = trained(NAdam8bit, **options)
    plain, _ = convert_state_dict(optimizer.state_dict(), "torch")
    assert plain["param_groups"][0]["decoupled_weight_decay"] is True
    weights = resumed(net, torch.optim.NAdam, plain, foreach=False)
    assert torch.allclose(weights, resumed(net, NAdam, plain), rtol=1e-5, atol=1e-6)
    option = {"decoupled_weight_decay": False}
    plain["param_groups"][0] |= option
    assert not torch.allclose(weights, resumed(net, NAdam, plain), rtol=1e-5, atol=1e-6)


def test_parameters_that_differ_from_their_group_become_overrides() -> None:
    _, adam = trained(AdamW8bit)
    saved = adam.state_dict()
    for option in ("state_quantizers", "overrides", "min_quantized_size"):
        del saved["param_groups"][0][option]
    saved["state"][2]["exp_avg"] = qmaps.algebra.saved.to_plain(
        qmaps.quantizer("B64/nf4@4s").quantize(saved["state"][2]["exp_avg"])
    )
    group = convert_state_dict(saved, "qmaps")[0]["param_groups"][0]
    assert group["state_quantizers"] == {
        "exp_avg": "B256/DE-sym@8s",
        "exp_avg_sq": "B256/geometric@8u+qsr",
    }
    assert group["min_quantized_size"] == 559
    assert group["overrides"] == {"2.weight": {"exp_avg": "B64/nf4@4s", "exp_avg_sq": None}}
    del group["param_names"]
    saved["param_groups"][0].pop("param_names")
    converted, report = convert_state_dict(saved, "qmaps")
    assert converted["param_groups"][0]["overrides"] == {}
    became = [row.became for row in report.states if row.parameter == "group0.param2"]
    assert became == ["B256/DE-sym@8s", "B256/geometric@8u+qsr"]


def test_zeros_under_a_first_moment_are_raised_and_counted() -> None:
    _, adam = trained(torch.optim.AdamW, eps=1e-12)
    saved = adam.state_dict()
    v = saved["state"][0]["exp_avg_sq"]
    v[0, :10] = v.max() * 1e-10
    saved["state"][0]["exp_avg"][0, :10] = v[0, 0].sqrt()
    saved["state"][0]["exp_avg"][0, 5] = 0
    pair = {"exp_avg": "B128/DE@8s", "exp_avg_sq": "B128/DE@8u"}
    with_zeros, report = convert_state_dict(saved, "qmaps", states=pair, zeros="leave")
    assert (report.states[1].zeros, report.states[1].raised) == (9, 0)
    raised, raised_report = convert_state_dict(saved, "qmaps", states=pair)
    assert (raised_report.states[1].zeros, raised_report.states[1].raised) == (9, 9)
    decoded = [
        from_plain(state_dict["state"][0]["exp_avg_sq"]).dequantize()
        for state_dict in (with_zeros, raised)
    ]
    smallest = qmaps.quantizer("B128/DE@8u").map.codebook()[1] * v.flatten()[:128].max()
    expected = decoded[0].clone()
    expected[0, :5] = expected[0, 6:10] = smallest
    assert decoded[1].equal(expected)
    # Decoded again, remaining zeros are the source's.
    decoded_on, raised_report = convert_state_dict(with_zeros, "torch")
    assert (raised_report.states[1].zeros, raised_report.states[1].raised) == (9, 9)
    assert decoded_on["state"][0]["exp_avg_sq"].equal(expected)


def test_true_zeros_stay_where_nothing_is_known() -> None:
    _, adam = trained(torch.optim.AdamW)
    saved = adam.state_dict()
    saved["state"][0]["exp_avg_sq"].zero_()
    for to in ("torch", "qmaps"):
        row = convert_state_dict(saved, to, states=None)[1].states[1]
        assert row.zeros > 5000
        assert row.raised == 0


def refused(saved: object, message: str, **options: object) -> None:
    with pytest.raises((BadValueError, BadTypeError), match=f"^{re.escape(message)}$"):
        convert_state_dict(saved, **{"to": "qmaps", **options})  # type: ignore[arg-type]


def test_bad_arguments() -> None:
    _, adam = trained(torch.optim.AdamW)
    saved = adam.state_dict()
    refused(
        [], ("state_dict must be the state_dict of an optimizer, with 'state' and 'param_groups'")
    )
    refused(saved, "zeros='drop' must be one of raise, leave", zeros="drop")
    refused(
        saved,
        "to='qmap' is not a known format; allowed are "
        f"{', '.join(qmaps.capture.conversion.FORMATS)}; nearest match: qmaps",
        to="qmap",
    )
    refused(
        saved,
        "optimizer='adamm' is unknown; allowed are adam, ademamix, lion, sgd, rmsprop, "
        "adagrad, adamwschedulefree, adan; nearest match: adam",
        optimizer="adamm",
    )
    refused(
        saved,
        "states='8bit' is not available in torch; allowed are 32bit",
        to="torch",
        states="8bit",
    )
    refused(
        saved,
        "states names the state 'sum', but the checkpoint has exp_avg, exp_avg_sq",
        states={"sum": "B128/DE@8u"},
    )
    refused(
        saved,
        "states sets 'exp_avg' to B128/DE@8u, which is unsigned; exp_avg has negative "
        "values and needs a signed map",
        states={"exp_avg": "B128/DE@8u"},
    )
    refused(
        saved,
        "states=3 must be a preset's name, a dict from state names to specs, or None",
        states=3,
    )
    _, amsgrad = trained(torch.optim.AdamW, amsgrad=True)
    refused(
        amsgrad.state_dict(),
        "the checkpoint has max_exp_avg_sq (amsgrad=True), which qmaps does not support",
    )


def damaged(change: object) -> dict[str, object]:
    _, adam = trained(torch.optim.AdamW)
    saved = copy.deepcopy(adam.state_dict())
    change(saved)  # type: ignore[operator]
    return saved


DAMAGES = [
    (lambda s: s["state"].clear(), "the checkpoint has no states, so there is nothing to convert"),
    (
        lambda s: s["param_groups"][0].pop("params"),
        "the parts of the optimizer state_dict do not fit together (KeyError: 'params')",
    ),
    (lambda s: s.update(state=3), "the parts of the optimizer state_dict do not fit together"),
    (
        lambda s: s["state"].update({9: s["state"][0]}),
        "the checkpoint has states of parameter 9, which is in no group",
    ),
    (
        lambda s: s["param_groups"][0]["param_names"].__setitem__(1, "0.weight"),
        "the checkpoint has two parameters named '0.weight'; every name must be unique",
    ),
    (
        lambda s: s["state"][0].update(step=-1),
        "the states of '0.weight' cannot be converted: step=-1 must be an integer of at least 0",
    ),
    (
        lambda s: s["state"][0].update(step=torch.zeros(2)),
        "the states of '0.weight' cannot be converted: step has 2 elements; it must have one",
    ),
    (
        lambda s: s["state"][0].update(exp_avg="x"),
        "the states of '0.weight' cannot be converted: expected a dense tensor, got a str",
    ),
    (
        lambda s: s["state"][0].update(exp_avg=torch.zeros(80, 64).to_sparse()),
        "the states of '0.weight' cannot be converted: expected a dense tensor, got a Tensor of "
        "layout torch.sparse_coo",
    ),
    (
        lambda s: s["state"][0].update(exp_avg=torch.zeros(80, 64, dtype=torch.int32)),
        "the states of '0.weight' cannot be converted: expected a floating-point tensor, got "
        "torch.int32",
    ),
    (
        lambda s: s["state"][0].update(exp_avg=torch.zeros(3)),
        "parameter '0.weight' has exp_avg_sq of shape (80, 64) and exp_avg of shape (3,); "
        "the shapes must be equal",
    ),
    (lambda s: s["state"][1].pop("exp_avg"), "parameter '0.bias' lacks the states exp_avg"),
    (
        lambda s: [state.update(mine=state.pop("exp_avg")) for state in s["state"].values()],
        "the checkpoint has exp_avg_sq, mine; only states of these optimizers can be converted: "
        "adam, ademamix, lion, sgd, rmsprop, adagrad, "
        "adamwschedulefree, adan",
    ),
    (
        lambda s: s["state"][0]["exp_avg"][0, 3:5].fill_(float("nan")),
        "state 'exp_avg' of '0.weight' holds 2 NaN or infinite elements, the first at flat index "
        "3; only finite states can be converted",
    ),
    (
        lambda s: s["state"][0]["exp_avg_sq"][0, 1].fill_(-1),
        "state 'exp_avg_sq' of '0.weight' holds 1 negative elements, the first at flat index 1; "
        "exp_avg_sq cannot be negative",
    ),
]


@pytest.mark.parametrize(("change", "message"), DAMAGES)
def test_damaged_states_are_refused(change: object, message: str) -> None:
    with pytest.raises(CaptureError, match=f"^{re.escape(message)}$"):
        convert_state_dict(damaged(change), "qmaps")


def test_damage_that_only_writing_meets_is_refused() -> None:
    saved = damaged(lambda s: s["param_groups"][0].update(betas=(), momentum_decay=4e-3))
    with pytest.raises(CaptureError) as caught:
        convert_state_dict(saved, "torch")
    assert str(caught.value) == (
        "the parts of the optimizer state_dict do not fit together (IndexError: tuple index out of "
        "range)"
    )


def test_damaged_packed_states_are_refused() -> None:
    _, adam = trained(AdamW8bit)
    saved = copy.deepcopy(adam.state_dict())
    saved["state"][0]["exp_avg"]["packed"] = torch.zeros(3, dtype=torch.uint8)
    message = (
        "the states of '0.weight' cannot be converted: packed has 3 elements of torch.uint8; "
        "B256/DE-sym@8s of shape (80, 64) needs 5120 elements of torch.uint8"
    )
    with pytest.raises(CaptureError, match=f"^{re.escape(message)}$"):
        convert_state_dict(saved, "torch")
