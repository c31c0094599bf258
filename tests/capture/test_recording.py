"""Recording: every optimizer of torch bit for bit, choices, limits, and names."""

from __future__ import annotations

import inspect
import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import qmaps
from qmaps import capture
from qmaps.capture import StateRecorder
from qmaps.errors import BadTypeError, BadValueError, CaptureError, OutputError

OPTIMIZERS = sorted(
    name
    for name, cls in inspect.getmembers(torch.optim, inspect.isclass)
    if issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer
)
VARIANTS = {
    "SGD": [{"lr": 0.1}, {"momentum": 0.9}],
    "RMSprop": [{"momentum": 0.9, "centered": True}],
    "Adam": [{}, {"amsgrad": True}, {"lr": torch.tensor(0.01)}],
}


def net() -> nn.Module:
    """Two dense matrices; SparseAdam's own gradient is sparse all the same."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 2, bias=False))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, times: int = 1) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.arange(6.0).view(2, 3) / 7).square().sum()
        loss.backward()
        if isinstance(optimizer, torch.optim.SparseAdam):
            for parameter in model.parameters():
                parameter.grad = parameter.grad.to_sparse()
        return loss

    for _ in range(times):
        optimizer.step(closure)


def adamw(model: nn.Module, **options: object) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), **options)


def tensors_in(state: dict[str, object]) -> dict[str, Tensor]:
    """Tensors of a state, found without the recorder."""
    results = {}
    for name, value in state.items():
        if isinstance(value, list):
            results |= {f"{name}.{i}": v for i, v in enumerate(value) if isinstance(v, Tensor)}
        elif isinstance(value, Tensor) and name != "step":
            results[name] = value
    return results


@pytest.mark.parametrize(
    ("name", "options"), [(name, o) for name in OPTIMIZERS for o in VARIANTS.get(name, [{}])]
)
def test_every_optimizer_of_torch_bit_for_bit(
    name: str, options: dict[str, object], tmp_path: Path
) -> None:
    model = net()
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)
    stateless = name == "SGD" and "momentum" not in options
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with StateRecorder(optimizer, tmp_path, every=2, names=model):
            step(model, optimizer, 5)
            live = {  # of step 5, while step 4 is the last recorded
                label: {n: t.clone() for n, t in tensors_in(optimizer.state[p]).items()}
                for label, p in model.named_parameters()
            }
    if stateless:
        messages = [str(w.message) for w in caught if "recorded" in str(w.message)]
        assert messages == ["SGD has no chosen tensor state at step 2; nothing was recorded"]
        assert list(tmp_path.iterdir()) == []
        return
    assert capture.load(tmp_path).steps == [2, 4]
    path = StateRecorder(optimizer, tmp_path, names=model, start=5).record()
    states = capture.load(tmp_path)
    assert path == tmp_path / "step-00000005.safetensors"
    assert states.steps == [2, 4, 5]
    assert (states.step, states.optimizer) == (5, name)
    recorded: dict[str, dict[str, Tensor]] = {}
    for parameter, state, lazy in states.lazies():
        recorded.setdefault(parameter, {})[state] = lazy.read()
    expected = {label: tensors for label, tensors in live.items() if tensors}
    assert expected
    assert recorded.keys() == expected.keys()
    for label, tensors in expected.items():
        assert recorded[label].keys() == tensors.keys()
        for state, tensor in tensors.items():
            assert recorded[label][state].dtype == tensor.dtype
            assert torch.equal(recorded[label][state], tensor), (label, state)
            assert states.shape(label, state) == tuple(tensor.shape)
        values = optimizer.state[dict(model.named_parameters())[label]]
        numbers = {n: float(v) for n, v in values.items() if isinstance(v, (int, float))}
        if "step" in values:
            numbers["step"] = float(values["step"])
        assert states.scalars(label) == numbers


def test_memory_is_written_as_the_dtype_it_has(tmp_path: Path) -> None:
    model = net()
    optimizer = adamw(model)
    weight = model[0].weight
    wild = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    optimizer.state[weight] = {
        "bf16": torch.randn(5, 3).bfloat16(),
        "odd": torch.tensor([True, False, True]),
        "f64": torch.randn(7, dtype=torch.float64),
        "codes": wild,
        "f8": wild[:100].view(torch.float8_e4m3fn),
        "transposed": torch.randn(4, 6).t(),
        "expanded": torch.randn(3, 1).expand(3, 4),
        "shared": weight.detach(),
        "shared_too": weight.detach(),
        "negative": torch.randn(3, dtype=torch.complex64).conj(),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(-0.0),
        "i64": torch.tensor([2**62 + 1]),
    }
    recorder = StateRecorder(optimizer, tmp_path, start=1)
    path = recorder.record()
    assert path is not None
    states = capture.load(path)
    count = 0
    for parameter, state, lazy in states.lazies():
        expected = optimizer.state[weight][state].contiguous().resolve_conj()
        assert parameter == "group0.param0"
        assert lazy.read().dtype == expected.dtype
        assert torch.equal(
            lazy.read().reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8)
        ), state
        count += 1
    assert count == 13
    assert torch.signbit(states.tensor("group0.param0", "scalar"))
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    widths = {"C64": 8, "F64": 8, "I64": 8, "F32": 4, "BF16": 2}
    del header["__metadata__"]
    for entry in header.values():  # readers map the file: every tensor is aligned
        assert entry["data_offsets"][0] % widths.get(entry["dtype"], 1) == 0


def test_one_tensor_is_in_memory_at_a_time(tmp_path: Path) -> None:
    alive: list[int] = []

    class Packed:
        """A quantized state; counts how many of its tensors live."""

        shape = (8, 8)

        def dequantize(self) -> Tensor:
            import weakref

            tensor = torch.ones(8, 8)
            alive.append(1)
            weakref.finalize(tensor, alive.pop)
            peaks.append(len(alive))
            return tensor

    peaks: list[int] = []
    model = net()
    optimizer = adamw(model)
    optimizer.state[model[0].weight] = {f"s{i}": Packed() for i in range(9)}
    StateRecorder(optimizer, tmp_path, start=1).record()
    assert len(peaks) == 9
    assert max(peaks) <= 2  # the last one may live until the next is bound to its name
    assert torch.equal(capture.load(tmp_path).tensor("group0.param0", "s8"), torch.ones(8, 8))


def test_quantized_states_are_recorded_decoded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(128, 64)
    optimizer = qmaps.optim.AdamW8bit(layer.parameters(), min_quantized_size=16)
    with StateRecorder(optimizer, tmp_path / "live", names=layer):
        layer(torch.ones(2, 128)).square().sum().backward()
        optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    live = capture.load(tmp_path / "live")
    saved = capture.load(tmp_path / "optimizer.pt", names=layer)
    for name in ("exp_avg", "exp_avg_sq"):
        quantized = optimizer.state[layer.weight][name]
        assert not isinstance(quantized, Tensor)
        assert torch.equal(live.tensor("weight", name), quantized.dequantize())
        assert torch.equal(saved.tensor("weight", name), quantized.dequantize())
    assert live.optimizer == "AdamW8bit"


def test_steps_parameters_and_states_are_chosen(tmp_path: Path) -> None:
    model = net()
    optimizer = adamw(model)
    options = {"names": model, "parameters": "1.*"}
    recorders = [
        StateRecorder(optimizer, tmp_path / "every", every=3, **options),
        StateRecorder(optimizer, tmp_path / "list", steps=iter([1, 5, 99]), **options),
        StateRecorder(optimizer, tmp_path / "call", steps=lambda n: n in (2, 3), **options),
        StateRecorder(optimizer, tmp_path / "some", names=model, parameters=lambda n: n[0] == "0"),
    ]
    step(model, optimizer, 7)
    for recorder in recorders:
        recorder.close()
        recorder.close()
    step(model, optimizer)
    loaded = {r.folder.name: capture.load(r.folder) for r in recorders}
    assert loaded["every"].steps == [3, 6]
    assert loaded["list"].steps == [1, 5]
    assert loaded["call"].steps == [2, 3]
    assert loaded["some"].steps == [1, 2, 3, 4, 5, 6, 7]
    assert loaded["every"].parameters() == ["1.weight"]
    assert loaded["every"].states("1.weight") == ["exp_avg", "exp_avg_sq"]
    assert loaded["some"].parameters() == ["0.weight"]


def test_names(tmp_path: Path) -> None:
    model = net()
    bare = adamw(model)
    named = torch.optim.AdamW(model.named_parameters())
    odd = {'a|b/"c"\n\0é': model[0].weight, "x[0]": model[1].weight}
    for folder, optimizer, names, expected in [
        ("bare", bare, None, ["group0.param0", "group0.param1"]),
        ("model", bare, model, ["0.weight", "1.weight"]),
        ("own", named, None, ["0.weight", "1.weight"]),
        ("pairs", named, odd.items(), list(odd)),
        ("part", bare, [("first", model[0].weight)], ["first", "group0.param1"]),
    ]:
        recorder = StateRecorder(optimizer, tmp_path / folder, names=names)
        step(model, optimizer)
        recorder.close()
        assert capture.load(tmp_path / folder).parameters() == expected
    chosen = StateRecorder(bare, tmp_path / "odd", names=odd.items(), parameters=["x[0]"])
    chosen.record()
    assert capture.load(tmp_path / "odd").parameters() == ["x[0]"]


def test_tied_and_frozen_parameters_and_those_without_gradient(tmp_path: Path) -> None:
    first, second, unused = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(2, 2)
    second.weight = first.weight
    second.bias.requires_grad_(False)
    model = nn.ModuleDict({"a": first, "b": second, "unused": unused})
    optimizer = adamw(model)
    with StateRecorder(optimizer, tmp_path, names=model):
        second(first(torch.ones(1, 3))).sum().backward()
        optimizer.step()
    assert capture.load(tmp_path).parameters() == ["a.weight", "a.bias"]
    assert unused.weight not in optimizer.state


def test_hyperparameters_scalars_and_skipped_states(tmp_path: Path) -> None:
    model = net()
    groups = [
        {"params": [model[0].weight], "lr": torch.tensor(0.25), "odd": object(), "none": None},
        {"params": [model[1].weight], "eps": 1e-3, "betas": (torch.tensor(0.5), 0.75)},
    ]
    optimizer = torch.optim.AdamW(groups)
    with StateRecorder(optimizer, tmp_path):
        step(model, optimizer)
        optimizer.state[model[0].weight] |= {
            "note": "text",
            "nothing": None,
            "many": [None, None],
            "sparse": torch.eye(2).to_sparse(),
            "meta": torch.empty(2, device="meta"),
            "count": 7,
            "nested": {"deep": [torch.ones(1)]},
        }
        step(model, optimizer)
    states = capture.load(tmp_path)
    first, second = "group0.param0", "group1.param0"
    assert states.hyperparameters(first)["lr"] == 0.25
    assert states.hyperparameters(first)["none"] is None
    assert states.hyperparameters(first)["amsgrad"] is False
    assert not {"odd", "params"} & states.hyperparameters(first).keys()
    assert states.hyperparameters(second)["betas"] == [0.5, 0.75]
    assert (states.eps(first), states.eps(second)) == (1e-8, 1e-3)
    assert states.scalars(first) == {"step": 2.0, "count": 7}
    assert states.scalars(second) == {"step": 2.0}
    assert states.states(first) == ["exp_avg", "exp_avg_sq", "nested.deep.0"]
    assert states.skipped == [
        "group0.param0: note (str)",
        "group0.param0: nothing (NoneType)",
        "group0.param0: many (NoneType)",
        "group0.param0: sparse (float32 sparse_coo)",
        "group0.param0: meta (float32 strided)",
    ]


def test_nothing_is_written_without_any_state(tmp_path: Path) -> None:
    model = net()
    recorder = StateRecorder(adamw(model), tmp_path)
    message = "^AdamW has no chosen tensor state at step 0; nothing was recorded$"
    with pytest.warns(UserWarning, match=message):
        assert recorder.record() is None
    with pytest.raises(CaptureError) as error:
        capture.load(tmp_path)
    assert str(error.value) == (
        f"{str(tmp_path)!r} holds no captured steps (step-*.safetensors), and no checkpoint of a "
        "known format"
    )


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"every": 0}, BadValueError, "every=0 must be an int of at least 1"),
        ({"every": 1.5}, BadValueError, "every=1.5 must be an int of at least 1"),
        ({"every": True}, BadValueError, "every=True must be an int of at least 1"),
        ({"start": -1}, BadValueError, "start=-1 must be an int of at least 0"),
        ({"steps": ["3"]}, BadValueError, "steps='3' must be an int of at least 0"),
        (
            {"steps": 3},
            BadTypeError,
            "steps=3 must be a collection of ints or a function of the step",
        ),
        (
            {"parameters": "decoder.*"},
            BadValueError,
            "parameters='decoder.*' matches no parameter; the names are group0.param0, "
            "group0.param1",
        ),
        (
            {"parameters": [3]},
            BadTypeError,
            "parameters must hold names or wildcards, got 3 among them",
        ),
        (
            {"names": ["weight"]},
            BadTypeError,
            "names must be a model or pairs of a name and a parameter, got str among them",
        ),
        (
            {"names": nn.Linear(1, 1)},
            BadValueError,
            "names has none of the optimizer's parameters; pass the model that the "
            "optimizer trains",
        ),
    ],
)
def test_arguments_that_are_not_allowed(
    arguments: dict[str, object], kind: type[Exception], message: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(kind) as error:
        StateRecorder(adamw(net()), out, **arguments)
    assert str(error.value) == message
    assert not out.exists()


def test_other_things_that_are_refused(tmp_path: Path) -> None:
    model = net()
    with pytest.raises(BadTypeError) as error:
        StateRecorder(model, tmp_path)
    assert str(error.value) == "optimizer must be a torch.optim.Optimizer, got Sequential"
    twice = [("same", parameter) for parameter in model.parameters()]
    with pytest.raises(BadValueError) as error:
        StateRecorder(adamw(model), tmp_path, names=twice)
    assert str(error.value) == "names has two parameters named 'same'; every name must be unique"
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError) as error:
        StateRecorder(adamw(model), tmp_path / "file")
    assert str(error.value) == (
        f"out={str(tmp_path / 'file')!r} cannot be written (File exists); give a writable folder"
    )


def test_entries_of_no_parameter_are_skipped(tmp_path: Path) -> None:
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    optimizer.state["k"] = torch.tensor(3)
    with StateRecorder(optimizer, tmp_path, every=1):
        layer(torch.ones(2)).sum().backward()
        optimizer.step()
    assert capture.load(tmp_path).skipped == ["k (int64 strided), of no parameter"]
