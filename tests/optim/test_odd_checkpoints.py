"""Checkpoints with anything in any place are loaded, or raise an error of qmaps."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import qmaps
from qmaps import lpmm, optim
from qmaps.capture.conversion import convert_file, convert_state_dict
from qmaps.errors import BadTypeError, BadValueError, CaptureError
from qmaps.ops.backends import backends, use_backend
from tests.helpers import examples
from tests.odd import objects, refused, tensors

AVAILABLE = {found.name for found in backends() if found.available}
CLASSES: list[Any] = [optim.AdamW8bit, optim.SGD, optim.Adafactor8bit, optim.AdamW8bitFactor,
                      torch.optim.AdamW]  # fmt: skip


def trained(cls: Any = optim.AdamW8bit) -> Any:
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 4)
    if cls is lpmm.LPMMSGD:
        layer = lpmm.convert(layer)
    options = {"momentum": 0.9} if cls is optim.SGD else {}
    if cls is not torch.optim.AdamW:
        options["min_quantized_size"] = 0
    if cls is optim.SGD:
        options["state_quantizers"] = "4bit"
    optimizer = cls(layer.named_parameters(), **options)
    layer(torch.ones(2, 6)).sum().backward()
    if cls is lpmm.LPMMSGD:
        optimizer.accumulation_steps = 2
        optimizer.step()
        layer(torch.ones(2, 6)).sum().backward()
        optimizer.step()
        layer(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    return optimizer


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in nested containers."""
    actual = [path] if path else []
    members = (
        value.items() if isinstance(value, dict)
        else enumerate(value) if isinstance(value, list) else ()
    )  # fmt: skip
    return actual + [place for key, member in members for place in places(member, (*path, key))]


def changed(saved: Any, place: tuple[Any, ...], value: Any) -> Any:
    saved = copy.deepcopy(saved)
    inside = saved
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    return saved


@pytest.mark.slow
@pytest.mark.fuzz
@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_anything_anywhere_is_loaded_or_refused(data: st.DataObject) -> None:
    cls = data.draw(st.sampled_from([*CLASSES, lpmm.LPMMSGD]))
    saved = trained(cls).state_dict()
    place = data.draw(st.sampled_from(places(saved)))
    damaged = changed(saved, place, data.draw(objects()))
    optimizer = trained(optim.AdamW8bit if cls is torch.optim.AdamW else cls)
    if not refused(optimizer.load_state_dict, damaged):
        refused(optimizer.step)


EDITED: dict[str, tuple[Any, dict[str, Any]]] = {
    "8bit": (optim.AdamW8bit, {}),
    "reset": (optim.AdamW4bit, {"reset_every": 2}),
    "master": (optim.AdamW8bit, {"master_weights": True}),
    "remainder": (optim.AdamW, {"master_weights": "bf16+8", "state_quantizers": "paper-4bit"}),
    "fitted": (optim.AdamW, {"state_quantizers": "B8/lloyd@4s + B8/quantile@4u"}),
    "low-rank": (optim.AdamW, {"state_quantizers": "lowrank2(B8/DE@8s)+B8/DE@4s + B8/linear@4u"}),
    "SGD": (optim.SGD, {"momentum": 0.9}),
    "NAdam": (optim.NAdam8bit, {}),
    "Adafactor": (optim.Adafactor8bit, {}),
    "AdEMAMix": (optim.AdEMAMix8bit, {}),
    "SM3": (optim.SM3, {}),
    "SOAP": (optim.SOAP, {}),
    "offload": (optim.CPUOffloadOptimizer, {}),
    "LPMM": (lpmm.LPMMAdam, {"accumulation_steps": 2}),
}
"""Optimizers with state_dicts to edit, with every kind of entry."""


def stepped(name: str) -> tuple[Any, Any]:
    """An optimizer after some steps, and its model."""
    cls, options = EDITED[name]
    torch.manual_seed(0)
    model: Any = torch.nn.Linear(6, 4)
    if "master_weights" in options:
        model = model.bfloat16()
    if name == "LPMM":
        model = lpmm.convert(model, "B8/linear0@12s+sr", "B8/linear0@8s")
    optimizer = cls(model.named_parameters(), min_quantized_size=0, **options)
    for _ in range(3):
        step(optimizer, model)
    return optimizer, model


def step(optimizer: Any, model: Any) -> None:
    model(torch.ones(2, 6, dtype=model.weight.dtype)).square().sum().backward()
    optimizer.step()


def contents(value: Any) -> Any:
    """Nested containers with tensors as lists, for comparisons."""
    if isinstance(value, dict):
        return {key: contents(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [contents(member) for member in value]
    return (value.dtype, value.tolist()) if isinstance(value, torch.Tensor) else value


def edited_tensors(x: torch.Tensor) -> list[torch.Tensor]:
    flat = x.reshape(-1)
    return [
        flat[:-1], torch.cat([flat, flat]), x[None], x.new_full(x.shape, 127), x.double(), x.int(),
        torch.full_like(x.float(), torch.nan), -x.float() - 1, x.to("meta"), x.to_sparse(),
        x.new_ones(()).expand(x.shape), x.clone().float().requires_grad_(),
    ]  # fmt: skip


def edit(data: st.DataObject, saved: Any) -> None:
    """Change, delete, rename or repeat an entry of a state_dict."""
    place = data.draw(st.sampled_from(places(saved)))
    inside = saved
    for key in place[:-1]:
        inside = inside[key]
    key, value = place[-1], inside[place[-1]]
    kind = data.draw(st.sampled_from(["change", "take", "put", "delete", "rename", "repeat"]))
    if kind == "change" and isinstance(value, torch.Tensor):
        inside[key] = data.draw(st.sampled_from(edited_tensors(value)))
    elif kind in ("take", "change"):
        source: Any = saved
        for key_of_source in data.draw(st.sampled_from(places(saved))):
            source = source[key_of_source]
        inside[key] = copy.deepcopy(source)
    elif kind == "put":
        inside[key] = data.draw(objects())
    elif kind == "delete":
        del inside[key]
    elif isinstance(inside, dict):
        names = [0, 1, 2, 0.0, True, None, "0", "step", "reset_step", "mu_product", "master_param"]
        inside[data.draw(st.sampled_from(names))] = value
        if kind == "rename":
            inside.pop(key, None)


@pytest.mark.fuzz
@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_an_edited_state_dict_is_loaded_or_changes_nothing(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(EDITED)))
    optimizer, model = stepped(name)
    saved = copy.deepcopy(optimizer.state_dict())
    for _ in range(data.draw(st.integers(1, 3))):
        edit(data, saved)
    before = contents([optimizer.state_dict(), *model.state_dict().values()])
    if refused(optimizer.load_state_dict, saved):
        assert contents([optimizer.state_dict(), *model.state_dict().values()]) == before
        step(optimizer, model)
    else:
        refused(step, optimizer, model)
        optimizer.state_dict()
    refused(convert_state_dict, saved, "torch")
    refused(convert_state_dict, saved, "bitsandbytes")


def read(path: Path) -> None:
    states = qmaps.capture.load(path)
    for parameter in states.parameters():
        for name in states.states(parameter):
            states.tensor(parameter, name)


@pytest.mark.fuzz
@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_anything_in_a_file_is_read_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    saved = trained(data.draw(st.sampled_from(CLASSES))).state_dict()
    place = data.draw(st.sampled_from(places(saved)))
    damaged = changed(saved, place, data.draw(objects()))
    # A lazily read file must not be overwritten.
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.pt"
    try:
        torch.save(damaged, path)
    except Exception:  # a file could not hold it
        return
    refused(read, path)
    refused(convert_file, path, tmp_path / "out.pt", to="torch", overwrite=True)
    refused(convert_file, path, tmp_path / "out.pt", to="bitsandbytes", overwrite=True)
    refused(convert_file, path, tmp_path / "out.pt", to="qmaps", states="8bit", overwrite=True)


@pytest.mark.parametrize("value", [torch.empty(0), torch.ones(3), "yes", None])
def test_unsupported_options_of_any_type_are_refused(value: object, tmp_path: Path) -> None:
    saved = trained(optim.SGD).state_dict()
    saved["param_groups"][0]["nesterov"] = value
    torch.save(saved, tmp_path / "in.pt")
    with pytest.raises(BadValueError, match=r"group 0 has nesterov=.* only nesterov=False"):
        convert_file(tmp_path / "in.pt", tmp_path / "out.pt", to="bitsandbytes")
    assert not (tmp_path / "out.pt").exists()


META = torch.zeros(4, 6, device="meta")
WRONG = [
    (("state", 0, "step"), 10**400, BadValueError,
     "state_dict has step=<int of 1329 bits> for parameter 'weight'; a step must be an "
     "integer from 0 to 2**53"),
    (("state", 0, "step"), 2**53 + 1, BadValueError,
     "state_dict has step=9007199254740993 for parameter 'weight'; a step must be an "
     "integer from 0 to 2**53"),
    (("state", 0, "step"), torch.empty((), device="meta"), BadTypeError,
     "the step of parameter 'weight' in state_dict must be a number, got Tensor"),
    (("state", 0, "exp_avg"), META, BadTypeError, (
        "exp_avg of parameter 'weight' in state_dict is on the device 'meta', without values; "
        "expected a dense tensor with values"
    )),
    (("state", 0, "exp_avg", "shape"), ["a"], BadValueError, (
        "state_dict has an invalid exp_avg for parameter 'weight': shape=['a'] of a saved "
        "quantized tensor must consist of ints"
    )),
    (("state", 0, "exp_avg", "shape"), [float("nan")], BadValueError, (
        "state_dict has an invalid exp_avg for parameter 'weight': shape=[nan] of a saved "
        "quantized tensor must consist of ints"
    )),
    (("state", 0, "exp_avg", "scales"), [-torch.ones(1)], BadValueError, (
        "state_dict has an invalid exp_avg for parameter 'weight': scales of B256/DE-sym@8s must "
        "not be negative; at least one is"
    )),
    (("param_groups", 0, "lr"), 10**400, BadValueError,
     "lr=<int of 1329 bits> is too large for a float"),
    (("param_groups", 0, "betas"), 0.9, BadTypeError, "betas=0.9 must be two numbers"),
    (("state", 0, "reset_step"), 3, BadValueError,
     "state_dict has reset_step=3 for parameter 'weight', above its step=1"),
    (("param_groups", 0, "params"), [[0], [1]], BadValueError, (
        "the parts of state_dict do not fit together (TypeError: unhashable type: 'list')"
    )),
]  # fmt: skip


@pytest.mark.parametrize(("place", "value", "error", "message"), WRONG, ids=range(len(WRONG)))
def test_messages_name_the_fault(
    place: tuple[Any, ...], value: Any, error: type[Exception], message: str
) -> None:
    optimizer = trained()
    with pytest.raises(error) as caught:
        optimizer.load_state_dict(changed(optimizer.state_dict(), place, value))
    assert str(caught.value) == message


def test_a_capture_of_a_wrong_step_is_refused(tmp_path: Path) -> None:
    saved = changed(trained(torch.optim.AdamW).state_dict(), ("state", 0, "step"), float("inf"))
    torch.save(saved, tmp_path / "c.pt")
    with pytest.raises(CaptureError) as caught:
        qmaps.capture.load(tmp_path / "c.pt")
    assert str(caught.value).endswith(
        "c.pt' is damaged at 'weight': step=inf must be an integer of at least 0"
    )


@pytest.mark.parametrize("backend", sorted(AVAILABLE))
@pytest.mark.parametrize("cls", CLASSES[:-1])
def test_parameters_and_gradients_of_any_kind(cls: Any, backend: str) -> None:
    def step(param: Any, grad: Any) -> None:
        try:
            param = torch.nn.Parameter(param)
            param.grad = grad if grad is not None else torch.ones_like(param)
        except (RuntimeError, TypeError):  # torch has no such parameter or gradient
            return
        if param.is_meta and not param.dim():
            return  # torch takes a number of such a tensor for an index
        optimizer = cls([param], min_quantized_size=0)
        optimizer.step()
        optimizer.step()

    with use_backend(backend):
        for tensor in tensors():
            refused(step, tensor, None)
            refused(step, torch.ones(4, 6), tensor)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_step_inside_a_transform_is_refused(backend: str, warm: bool) -> None:
    if backend not in AVAILABLE:
        pytest.skip(f"{backend} is not there")

    def through(x: torch.Tensor) -> torch.Tensor:
        weight.grad = x * 2
        optimizer.step()
        return x.sum()

    with use_backend(backend):
        optimizer = trained()
        weight = optimizer.param_groups[0]["params"][0]
        if warm:
            optimizer.step()
        before = weight.detach().clone()
        for call in (
            lambda: torch.func.grad(through)(torch.ones(4, 6)),
            lambda: torch.func.vmap(through)(torch.ones(2, 4, 6)),
            lambda: torch.func.jvp(through, (torch.ones(4, 6),), (torch.ones(4, 6),)),
        ):
            with pytest.raises(BadTypeError) as caught:
                call()
            assert str(caught.value) == (
                "the gradient of parameter 'weight' is inside a transform of torch.func, such as "
                "grad, jvp or vmap; expected a dense tensor with values"
            )
            weight.grad = None
        assert torch.equal(weight, before)


def test_nested_tensors_are_refused() -> None:
    weight = torch.nn.Parameter(torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]))
    optimizer = optim.AdamW8bit([weight])
    torch.nested.to_padded_tensor(weight, 0.0).sum().backward()
    with pytest.raises(
        BadTypeError, match="parameter 0 of group 0 is a nested tensor; expected a "
    ):
        optimizer.step()
