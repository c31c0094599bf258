"""Checkpoints: a wrong one is refused with the reason, and the optimizer stays as it was."""

from __future__ import annotations

import copy
import io
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qmaps
from qmaps.algebra.saved import tensors_only
from qmaps.errors import BadTypeError, BadValueError
from qmaps.ops.backends import use_backend
from qmaps.optim import (
    SGD,
    Adafactor,
    Adafactor8bit,
    AdamW,
    AdamW4bit,
    AdamW8bit,
    QuantizedOptimizer,
)
from tests.optim.families import floats, model, train

Damage = Callable[[dict[str, Any]], object]


def trained(cls: type[QuantizedOptimizer] = AdamW8bit, **options: Any) -> QuantizedOptimizer:
    net = model()
    optimizer = cls(net.named_parameters(), **options)
    train(net, optimizer, range(2))
    return optimizer


def fingerprint(optimizer: QuantizedOptimizer) -> list[Any]:
    """Everything a load could change."""
    results: list[Any] = []
    for group in optimizer.param_groups:
        results.append({key: value for key, value in group.items() if key != "params"})
        for param in group["params"]:
            state = optimizer.state.get(param, {})
            results += [(name, id(value)) for name, value in state.items()]
            results += [floats(value).reshape(-1).tolist() for value in state.values()]
    return copy.deepcopy(results)


def first(saved: dict[str, Any]) -> dict[str, Any]:
    return saved["state"][0]


def last(saved: dict[str, Any]) -> dict[str, Any]:
    return saved["state"][max(saved["state"])]


def group(saved: dict[str, Any]) -> dict[str, Any]:
    return saved["param_groups"][0]


def swap(items: list[Any], a: int, b: int) -> None:
    items[a], items[b] = items[b], items[a]


BIAS = "parameter '3.bias'"
DAMAGES: list[tuple[Damage, type[Exception], str]] = [
    (lambda s: s.pop("state"), BadValueError,
     "state_dict lacks state; it has param_groups, qmaps"),
    (lambda s: (s.pop("state"), s.pop("param_groups"), s.pop("qmaps")), BadValueError,
     "state_dict lacks state and param_groups; it has nothing"),
    (lambda s: s["qmaps"].update(format=3), BadValueError,
     "state_dict has format=3 of a newer version of qmaps; this version reads formats up to 2"),
    (lambda s: s["qmaps"].update(format="1"), BadValueError,
     "state_dict has format='1'; the format must be an int of at least 1"),
    (lambda s: s.update(qmaps=None), BadValueError,
     "state_dict has format=None; the format must be an int of at least 1"),
    (lambda s: s.update(state=[]), BadTypeError, (
        "state_dict must have a dict as state and a list as param_groups, got a list as state"
    )),
    (lambda s: s.update(param_groups={}), BadTypeError,
     "state_dict must have a dict as state and a list as param_groups, got a dict as param_groups"),
    (lambda s: s.update(param_groups=[7]), BadTypeError,
     "parameter group 0 of state_dict must have a list as params"),
    (lambda s: s["param_groups"].append(group(s)), BadValueError,
     "state_dict has 2 parameter groups, but this optimizer has 1"),
    (lambda s: group(s)["params"].pop(), BadValueError,
     "state_dict has 5 parameters in group 0, but this optimizer has 6"),
    (lambda s: group(s).update(params=[0, 1, 2, 3, 4, 4]), BadValueError,
     "state_dict lists one parameter twice"),
    (lambda s: group(s)["param_names"].pop(), BadValueError,
     "state_dict has 5 names for 6 parameters in group 0"),
    (lambda s: swap(group(s)["param_names"], 1, 3), BadValueError,
     "state_dict orders the parameters of group 0 differently: '2.bias' is in the place of "
     "this optimizer's '0.bias'"),
    (lambda s: group(s).update(lr=-1.0), BadValueError, "lr=-1.0 must be at least 0"),
    (lambda s: group(s).update(state_quantizers={"exp_avg": "B128/XY@4s"}), BadValueError,
     f"spec='B128/XY@4s': unknown map 'XY'; allowed are {', '.join(qmaps.maps.names())}"),
    (lambda s: s["state"].update({9: {}}), BadValueError,
     "state_dict has a state of parameter 9, which is not in any of its parameter "
     "groups"),
    (lambda s: s["state"].update({5: 3}), BadTypeError,
     f"the state of {BIAS} in state_dict must be a dict, got int"),
    (lambda s: last(s).update(exp_avg=torch.zeros(71)), BadValueError,
     f"state_dict has exp_avg of shape (71,) for {BIAS} of shape (70,)"),
    (lambda s: last(s).update(momentum_buffer=torch.zeros(70)), BadValueError,
     f"state_dict has the state 'momentum_buffer' for {BIAS}; AdamW8bit has the states "
     "exp_avg, exp_avg_sq"),
    (lambda s: last(s).update(exp_avg="zero"), BadTypeError,
     f"exp_avg of {BIAS} in state_dict must be a tensor, got str"),
    (lambda s: last(s).update(exp_avg=torch.zeros(70, dtype=torch.int64)), BadTypeError,
     f"exp_avg of {BIAS} in state_dict must be a dense floating-point tensor, got torch.int64"),
    (lambda s: last(s).update(exp_avg=torch.zeros(70).to_sparse()), BadTypeError,
     f"exp_avg of {BIAS} in state_dict must be a dense floating-point tensor, got "
     "torch.sparse_coo"),
    (lambda s: last(s).update(step=torch.tensor(float("nan"))), BadValueError,
     f"state_dict has step=nan for {BIAS}; a step must be an integer from 0 to 2**53"),
    (lambda s: last(s).update(step=-1), BadValueError,
     f"state_dict has step=-1 for {BIAS}; a step must be an integer from 0 to 2**53"),
    (lambda s: last(s).update(step="1"), BadTypeError,
     f"the step of {BIAS} in state_dict must be a number, got str"),
    (lambda s: last(s).update(exp_avg=first(s)["exp_avg"]), BadValueError,
     f"state_dict has exp_avg of shape (80, 90) for {BIAS} of shape (70,)"),
    (lambda s: first(s)["exp_avg"].update(format=3), BadValueError,
     "state_dict has an invalid exp_avg for parameter '0.weight': format=3 of a saved quantized "
     "tensor is not supported; supported are 1, and 2 in a state_dict"),
    (lambda s: first(s)["exp_avg"].update(packed=first(s)["exp_avg"]["packed"].view(2, -1)),
     BadValueError,
     "state_dict has an invalid exp_avg for parameter '0.weight': packed has 7200 elements of "
     "torch.uint8; B256/DE-sym@8s of shape (80, 90) needs 7200 elements of torch.uint8"),
    (lambda s: first(s)["exp_avg"].update(scales=[torch.zeros(29).to_sparse()]), BadValueError,
     "state_dict has an invalid exp_avg for parameter '0.weight': packed and scales of a "
     "quantized tensor must be dense tensors"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(DAMAGES)))
def test_a_bad_checkpoint_is_refused_and_changes_nothing(number: int) -> None:
    damage, error, message = DAMAGES[number]
    saved = copy.deepcopy(trained().state_dict())
    damage(saved)
    optimizer = trained(lr=0.5)
    before = fingerprint(optimizer)
    with pytest.raises(error) as caught:
        optimizer.load_state_dict(saved)
    assert str(caught.value) == message
    assert fingerprint(optimizer) == before


def test_a_state_dict_of_another_kind() -> None:
    optimizer = trained()
    with pytest.raises(BadTypeError) as caught:
        optimizer.load_state_dict([1])
    assert str(caught.value) == "state_dict must be a dict, got list"


def test_checkpoints_of_other_optimizers() -> None:
    for saved, optimizer, message in (
        (trained(SGD, momentum=0.9, state_quantizers="8bit"), trained(),
         "state_quantizers names the state 'momentum_buffer', but AdamW8bit has exp_avg, "
         "exp_avg_sq; state_dict was written by SGD"),
        (trained(), trained(SGD, momentum=0.9),
         "state_quantizers names the state 'exp_avg', but SGD has momentum_buffer; "
         "state_dict was written by AdamW8bit"),
    ):  # fmt: skip
        before = fingerprint(optimizer)
        with pytest.raises(BadValueError) as caught:
            optimizer.load_state_dict(saved.state_dict())
        assert str(caught.value) == message
        assert fingerprint(optimizer) == before
    with pytest.raises(BadTypeError) as caught:
        trained().load_state_dict(trained(Adafactor).state_dict())
    assert str(caught.value) == (
        "eps=(None, 0.001) must be a number; state_dict was written by Adafactor"
    )


def test_a_quantizer_that_nobody_here_knows_is_refused() -> None:
    codebook = qmaps.Codebook([-1, -0.25, 0, 0.25, 1], label="mine")
    q = qmaps.quantizer("B64/mine@3s", codebooks=[codebook])
    saved = trained(AdamW, state_quantizers={"exp_avg": q}).state_dict()
    # The codebook comes with the states; here they have lost it.
    for state in saved["state"].values():
        state.pop("exp_avg")
    optimizer = trained(AdamW, lr=0.5)
    before = fingerprint(optimizer)
    with pytest.raises(BadValueError, match="spec='B64/mine@3s': unknown map 'mine'"):
        optimizer.load_state_dict(saved)
    assert fingerprint(optimizer) == before
    knowing = trained(AdamW, state_quantizers={"exp_avg": q})
    knowing.load_state_dict(saved)
    assert str(knowing.state_dict()) == str(saved)


def test_a_checkpoint_of_another_width_brings_its_quantizers_along() -> None:
    saved = trained(AdamW4bit)
    optimizer = trained(AdamW8bit)
    optimizer.load_state_dict(saved.state_dict())
    assert optimizer.state_nbytes == saved.state_nbytes
    net = model()
    train(net, AdamW8bit(net.parameters()), range(1))
    assert str(optimizer.state_dict()["param_groups"]) == str(saved.state_dict()["param_groups"])


def test_checkpoints_from_before_there_was_a_number_are_migrated() -> None:
    saved = trained(AdamW4bit, seed=3).state_dict()
    old = {key: saved[key] for key in ("state", "param_groups")}
    old["param_groups"] = [
        {k: v for k, v in group.items() if k not in ("overrides", "quantize", "param_names")}
        for group in old["param_groups"]
    ]
    optimizer = trained(AdamW4bit, seed=9)
    optimizer.load_state_dict(old)
    assert str(optimizer.state_dict()) == str(saved)


def test_hooks_see_all_of_a_checkpoint() -> None:
    optimizer, log = trained(), []
    saved = trained(lr=0.25).state_dict()

    def change(_: object, state_dict: dict[str, Any]) -> dict[str, Any]:
        log.append(sorted(state_dict))
        groups = [{**state_dict["param_groups"][0], "lr": 0.125}]
        return {**state_dict, "param_groups": groups}

    optimizer.register_load_state_dict_pre_hook(change)
    optimizer.register_load_state_dict_post_hook(lambda o: log.append(o.param_groups[0]["lr"]))
    optimizer.load_state_dict(saved)
    assert log == [["param_groups", "qmaps", "state"], 0.125]
    assert saved["param_groups"][0]["lr"] == 0.25


def test_overrides_follow_the_checkpoints_names() -> None:
    overrides = {"*0.weight": {"exp_avg": "B64/DE@4s"}}
    saved = trained(AdamW, overrides=overrides).state_dict()
    names = saved["param_groups"][0]["param_names"]
    saved["param_groups"][0]["param_names"] = [f"module.{name}" for name in names]
    optimizer = trained(AdamW)
    optimizer.load_state_dict(saved)
    weight = optimizer.param_groups[0]["params"][0]
    assert optimizer.state[weight]["exp_avg"].quantizer.spec == "B64/DE@4s"
    assert str(optimizer.quantizer_of("exp_avg", weight, optimizer.param_groups[0])) == "B64/DE@4s"


def test_overrides_stay_where_the_checkpoint_has_none() -> None:
    plain, overridden = trained(AdamW8bit), trained(AdamW8bit, overrides={"0.*": "4bit"})
    saved = plain.state_dict()
    saved["param_groups"][0]["param_names"] = [
        f"module.{name}" for name, _ in model().named_parameters()
    ]
    optimizer = trained(AdamW8bit, overrides={"0.weight": None})
    weight = optimizer.param_groups[0]["params"][0]
    optimizer.load_state_dict(saved)
    assert optimizer.quantizer_of("exp_avg", weight, optimizer.param_groups[0]) is None
    optimizer.load_state_dict(overridden.state_dict())
    assert optimizer.quantizer_of("exp_avg", weight, optimizer.param_groups[0]).map.bits == 5


@pytest.mark.parametrize("library", ["bitsandbytes", "torchao"])
def test_quantized_states_of_other_libraries_are_for_qmaps_convert(library: str) -> None:
    optim = pytest.importorskip(f"{library}.optim")
    net = nn.Linear(128, 128)
    theirs = optim.AdamW8bit(net.parameters())
    net(torch.ones(1, 128)).sum().backward()
    with torch.compiler.set_stance("force_eager"):  # compiling takes half a minute
        theirs.step()
    with pytest.raises(BadValueError) as caught:
        AdamW8bit(net.parameters()).load_state_dict(theirs.state_dict())
    assert str(caught.value) == (
        f"state_dict has quantized states of {library}; convert its file with qmaps convert FILE "
        "NEW --to qmaps, or the dict with "
        "qmaps.capture.conversion.convert_state_dict(state_dict, 'qmaps')"
    )


MINE = qmaps.quantizer(
    "B64/mine@3s", codebooks=[qmaps.Codebook([-1, -0.25, 0, 0.25, 1], label="mine")]
)
PLAIN: list[tuple[type[QuantizedOptimizer], dict[str, Any]]] = [
    (AdamW8bit, {}),
    (AdamW4bit, {"seed": 3}),
    (AdamW, {"state_quantizers": {"exp_avg": MINE, "exp_avg_sq": "rank1/linear@4u+sr"}}),
    (AdamW, {"state_quantizers": {"exp_avg": "B128/quantile@4s"}, "min_quantized_size": 0}),
    (AdamW, {"state_quantizers": "B32xf16/softsign@8s + B32xf16sq/sqrt@8u"}),
    (AdamW, {"state_quantizers": "B16xe4m3/e2m1@4s+sr + B32xe8m0/e4m3@8u"}),
    (AdamW, {"state_quantizers": "bf16+sr + fp16"}),
    (AdamW, {"state_quantizers": "lowrank4(B64/DE@8s)+B64/linear@4s+qsr + rank1/linear@4u+qsr"}),
    (SGD, {"momentum": 0.9, "state_quantizers": "8bit"}),
    (Adafactor8bit, {"beta1": 0.9, "min_quantized_size": 8}),
]


@pytest.mark.parametrize("end", ["+dither", "+ef4", "+ef8"])
@pytest.mark.parametrize("place", ["states", "options"])
def test_checkpoints_with_a_removed_rounding_change_nothing(end: str, place: str) -> None:
    net = model()
    optimizer = AdamW(net.named_parameters(), state_quantizers="B64/DE@4s + B64/linear@4u")
    train(net, optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    train(net, optimizer, range(2, 3))
    before = str(optimizer.state_dict())
    if place == "states":
        text = tensors_only({"spec": f"B64/linear@4u{end}"}, torch.device("cpu"))["spec"]
        saved["state"][0]["exp_avg_sq"]["spec"] = text
    else:
        saved["param_groups"][0]["state_quantizers"] = f"B64/DE@4s + B64/linear@4u{end}"
    message = f"spec='B64/linear@4u{end}': the rounding {end} was removed in version 0.4; use +qsr"
    with pytest.raises(BadValueError, match=re.escape(message)):
        optimizer.load_state_dict(saved)
    assert str(optimizer.state_dict()) == before


def put(optimizer: QuantizedOptimizer, saved: dict[str, Any]) -> None:
    """Put states into the optimizer like `torch.distributed.optim.ZeroRedundancyOptimizer`."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for number, state in saved["state"].items():
        optimizer.state[params[number]] = dict(state)


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("number", range(len(PLAIN)))
def test_saved_states_that_are_put_among_states_are_read(number: int, engine: str) -> None:
    cls, options = PLAIN[number]
    with use_backend(engine):
        net = model()
        optimizer = cls(net.named_parameters(), **options)
        train(net, optimizer, range(3))
        twin = model()
        twin.load_state_dict(net.state_dict())
        trained_optimizer = cls(twin.named_parameters(), **options)
        train(twin, trained_optimizer, range(1))
        twin.load_state_dict(net.state_dict())
        saved = copy.deepcopy(optimizer.state_dict())
        before, codes = str(saved), copy.deepcopy(saved["state"][0])
        # Whatever looks first: sizes, a checkpoint, a step.
        for look in (
            lambda: trained_optimizer.state_nbytes == optimizer.state_nbytes,
            lambda: str(trained_optimizer.memory()) == str(optimizer.memory()),
            lambda: str(trained_optimizer.state_dict()) == before,
        ):
            put(trained_optimizer, saved)
            assert look()
        put(trained_optimizer, saved)
        train(net, optimizer, range(3, 5))
        train(twin, trained_optimizer, range(3, 5))
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)
    assert str(trained_optimizer.state_dict()) == str(optimizer.state_dict())
    for name, value in saved["state"][0].items():
        if isinstance(value, dict):  # steps do not write to the checkpoint's codes
            assert torch.equal(value["packed"], codes[name]["packed"])


def test_saved_states_that_are_put_among_states_are_checked() -> None:
    net = model()
    optimizer = AdamW8bit(net.named_parameters())
    train(net, optimizer, range(1))
    saved = optimizer.state_dict()
    saved["state"][0]["exp_avg"] = saved["state"][2]["exp_avg"]
    put(optimizer, saved)
    before = [param.clone() for param in net.parameters()]
    with pytest.raises(BadValueError) as caught:
        optimizer.step()
    assert str(caught.value) == (
        "state_dict has exp_avg of shape (70, 80) for parameter '0.weight' of shape (80, 90)"
    )
    assert all(map(torch.equal, before, net.parameters()))


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch has no distributed")
def test_placeholders_of_distributed_checkpoints_are_refused(tmp_path: Any) -> None:
    import torch.distributed.checkpoint as dcp

    saved = trained()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process has no group
        dcp.save({"optimizer": saved.state_dict()}, checkpoint_id=tmp_path, no_dist=True)
        results = {"optimizer": trained().state_dict()}
        dcp.load(results, checkpoint_id=tmp_path, no_dist=True)
    with pytest.raises(BadValueError) as caught:
        trained().load_state_dict(results["optimizer"])
    assert str(caught.value) == (
        "state_dict has a state under the string '0', as dcp.load returns it; with "
        "torch.distributed.checkpoint use get_optimizer_state_dict and "
        "set_optimizer_state_dict, as docs/distributed.md shows"
    )


def test_groups_added_late_go_through_a_checkpoint() -> None:
    def make(net: nn.Module) -> QuantizedOptimizer:
        optimizer = AdamW4bit(list(net[0].named_parameters()), seed=2)
        extra = list(net[2].named_parameters()) + list(net[3].named_parameters("norm"))
        optimizer.add_param_group({"params": extra, "state_quantizers": "8bit", "lr": 1e-2})
        return optimizer

    uninterrupted = model()
    train(uninterrupted, make(uninterrupted), range(5))
    net, resumed = model(), model()
    optimizer = make(net)
    train(net, optimizer, range(3))
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    resumed.load_state_dict(net.state_dict())
    again = make(resumed)
    again.load_state_dict(torch.load(buffer, weights_only=True))
    copied_net, copied = copy.deepcopy((resumed, again))
    for trained_net, its in ((resumed, again), (copied_net, copied)):
        train(trained_net, its, range(3, 5))
        for p, q in zip(uninterrupted.parameters(), trained_net.parameters(), strict=True):
            assert torch.equal(p, q)


def test_a_checkpoint_of_the_old_random_numbers_loads() -> None:
    net = model()
    optimizer = AdamW4bit(net.named_parameters(), min_quantized_size=0)
    for param in net.parameters():
        param.grad = torch.full_like(param, 0.01)
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    assert saved["qmaps"].pop("stream") == 2
    loaded = AdamW4bit(net.named_parameters(), min_quantized_size=0)
    loaded.load_state_dict(saved)
    for ours, theirs in zip(loaded.state.values(), optimizer.state.values(), strict=True):
        for name, value in theirs.items():
            assert torch.equal(floats(ours[name]), floats(value))


def test_numpy_numbers_among_options_are_saved_as_pythons() -> None:
    """NumPy schedules return NumPy numbers; torch.load with weights_only=True refuses these."""
    optimizer = trained()
    options = {"lr": 1e-3 * np.cos(0.1), "betas": (np.float32(0.5), np.float64(0.99)),
               "eps": np.float16(1e-3), "maximize": np.bool_(False),
               "mine": [{"x": np.int64(3)}]}  # fmt: skip
    optimizer.param_groups[0] |= options
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    (saved,) = torch.load(buffer, weights_only=True)["param_groups"]
    assert saved["lr"] == float(options["lr"])
    assert saved["betas"] == (0.5, 0.99)
    assert saved["eps"] == float(options["eps"])
    assert (saved["maximize"], saved["mine"]) == (False, [{"x": 3}])
    kinds = {type(saved[name]) for name in ("lr", "eps")} | {*map(type, saved["betas"])}
    assert kinds == {float}
    assert type(optimizer.param_groups[0]["lr"]) is np.float64
