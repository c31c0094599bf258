"""Reading: damage in every place, later formats, checkpoints of all makes, names, conversion."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import qmaps
from qmaps import capture
from qmaps.capture import CapturedStates, StateRecorder, snapshot
from qmaps.capture.recorder import write
from qmaps.errors import BadTypeError, BadValueError, CaptureError, OutputError


def trained(groups: bool = False) -> tuple[nn.Sequential, torch.optim.AdamW]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    parameters = list(model.parameters())
    # In the order of Hugging Face's Trainer: with weight decay first, then without.
    sorted_ = [{"params": parameters[::2]}, {"params": parameters[1::2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(sorted_ if groups else parameters)
    for _ in range(2):
        model(torch.randn(2, 5)).square().sum().backward()
        optimizer.step()
    return model, optimizer


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """One whole snapshot."""
    model, optimizer = trained()
    path = StateRecorder(optimizer, tmp_path / "states", names=model).record()
    assert path is not None
    return path


def message(call: object, kind: type[Exception] = CaptureError) -> str:
    with pytest.raises(kind) as error:
        call()
    assert type(error.value) is kind
    assert "\n" not in str(error.value)
    return str(error.value)


def read_all(path: Path) -> None:
    list(capture.load(path).items())


def rewrite(path: Path, change: object) -> None:
    """Change the JSON metadata of a snapshot."""
    with safe_open(path, framework="pt") as file:
        metadata = json.loads(file.metadata()[snapshot.KEY])
        tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
    metadata = change(metadata) or metadata
    text = metadata if isinstance(metadata, str) else json.dumps(metadata)
    save_file(tensors, path, metadata={snapshot.KEY: text})


def test_the_safetensors_library_reads_our_files(recorded: Path) -> None:
    with safe_open(recorded, framework="pt") as file:
        metadata = json.loads(file.metadata()["qmaps_capture"])
        assert len(metadata["tensors"]) == len(file.keys()) == 8
        first = metadata["tensors"][0]
        assert first == {
            "parameter": "0.weight", "state": "exp_avg", "shape": [4, 5], "dtype": "float32",
        }  # fmt: skip
        got = file.get_tensor("0")
    assert torch.equal(got, capture.load(recorded).tensor("0.weight", "exp_avg"))
    assert (metadata["step"], metadata["optimizer"], metadata["format"]) == (2, "AdamW", 1)
    content = recorded.read_bytes()
    header = int.from_bytes(content[:8], "little")
    assert (8 + header) % 8 == 0


def test_damage_anywhere_is_one_kind_of_error(recorded: Path) -> None:
    content = recorded.read_bytes()
    for size in [*range(0, len(content), 47), len(content) - 1]:
        recorded.write_bytes(content[:size])
        text = message(lambda: read_all(recorded))
        assert text.startswith(f"{str(recorded)!r} is "), text
    header = 8 + int.from_bytes(content[:8], "little")
    generator = random.Random(0)
    refused = []
    for _ in range(600):  # within the header, where damage can change meaning
        damaged = bytearray(content)
        for _ in range(generator.choice([1, 1, 3])):
            damaged[generator.randrange(header)] = generator.randrange(256)
        recorded.write_bytes(damaged)
        try:
            read_all(recorded)
        except CaptureError as error:
            refused.append(str(error))
    assert len(refused) > 200
    assert not any("\n" in text for text in refused)


def test_metadata_that_is_nested_too_deeply_is_refused(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = json.loads

    def too_deep(text: str, **options: object) -> object:
        if isinstance(text, str) and '"hyperparameters"' in text:
            raise RecursionError
        return loads(text, **options)

    monkeypatch.setattr(json, "loads", too_deep)
    assert message(lambda: capture.load(recorded)) == (
        f"{str(recorded)!r} has qmaps metadata that cannot be read"
    )


def test_snapshots_that_cannot_be_read(recorded: Path, tmp_path: Path) -> None:
    shown = repr(str(recorded))
    content = recorded.read_bytes()

    def after(change: object) -> str:
        recorded.write_bytes(content)
        rewrite(recorded, change)
        return message(lambda: capture.load(recorded))

    unreadable = f"{shown} has qmaps metadata that cannot be read"
    mismatch = f"{shown} does not hold the tensors that its metadata lists"
    assert after(lambda a: a.update(format=2)) == (
        f"{shown} has capture format 2; the supported format is 1"
    )
    assert after(lambda a: a.update(step="2")) == unreadable
    assert after(lambda a: a.update(hyperparameters=[])) == unreadable
    assert after(lambda a: a.pop("tensors") and None) == unreadable
    assert after(lambda _: "{") == unreadable
    assert after(lambda _: "[1]") == unreadable
    assert after(lambda a: a["scalars"]["0.weight"].update(step="2")) == unreadable
    assert after(lambda a: a["tensors"][0].update(dtype="float7")) == unreadable
    assert after(lambda a: a["tensors"][0].update(dtype="int32")) == mismatch
    assert after(lambda a: a["tensors"][0].update(shape=[5, 4])) == mismatch
    assert after(lambda a: a["tensors"].pop() and None) == mismatch
    recorded.write_bytes(b"")
    assert message(lambda: capture.load(recorded.parent)) == f"{shown} is empty"
    recorded.write_bytes(content[:100])
    assert message(lambda: capture.load(recorded)) == (
        f"{shown} is corrupt or truncated (Error while deserializing header: invalid header length)"
    )
    save_file({"w": torch.ones(1)}, tmp_path / "model.safetensors")
    assert message(lambda: capture.load(tmp_path / "model.safetensors")) == (
        f"{str(tmp_path / 'model.safetensors')!r} is a safetensors file with the tensor 'w'; "
        "states are named PARAMETER.STATE, such as layer.weight.exp_avg"
    )


def test_snapshots_without_the_later_parts_are_read(recorded: Path) -> None:
    def early(metadata: dict[str, object]) -> None:
        for part in ("scalars", "parameters", "skipped"):
            del metadata[part]

    rewrite(recorded, early)
    states = capture.load(recorded.parent)
    assert states.scalars("0.weight") == {}
    assert states.numel == 2 * sum(p.numel() for p in trained()[0].parameters())
    model, optimizer = trained()
    StateRecorder(optimizer, recorded.parent, names=model).close()


def test_tensors_are_read_when_asked_for(recorded: Path) -> None:
    states = capture.load(recorded)
    assert states.shape("0.weight", "exp_avg") == (4, 5)
    recorded.unlink()
    assert states.numel
    assert message(lambda: states.tensor("0.weight", "exp_avg")) == (
        f"{str(recorded)!r} does not exist"
    )


def test_wrappers_of_several_optimizers(tmp_path: Path) -> None:
    _, first = trained()
    model, second = trained()
    path = tmp_path / "gan.ckpt"
    torch.save({"optimizer_states": [first.state_dict(), second.state_dict()]}, path)
    states = capture.load(path)
    assert len(states.parameters()) == 8
    assert states.parameters()[4] == "optimizer1.group0.param0"
    assert torch.equal(
        states.tensor("optimizer1.group0.param0", "exp_avg"),
        second.state[model[0].weight]["exp_avg"],
    )
    by_name = {
        "state": {"a.b": {"exp_avg": torch.ones(2), "step": torch.tensor(4.0)}},
        "param_groups": [{"params": ["a.b", "unused"], "lr": 0.5}],
    }
    torch.save({"optim": by_name}, path)
    states = capture.load(path)
    assert (states.parameters(), states.step) == (["a.b"], 4)
    assert states.hyperparameters("a.b") == {"lr": 0.5}
    assert states.scalars("a.b") == {"step": 4.0}


def test_names_for_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "optimizer.pt"
    model, optimizer = trained(groups=True)
    torch.save(optimizer.state_dict(), path)
    order = ["0.weight", "1.weight", "0.bias", "1.bias"]
    states = capture.load(path, names=order)
    assert states.parameters() == order
    assert states.hyperparameters("1.bias")["weight_decay"] == 0.0
    assert torch.equal(
        states.tensor("0.bias", "exp_avg"), optimizer.state[model[0].bias]["exp_avg"]
    )
    shown = repr(str(path))
    # A model with another order of parameters than these groups is detected.
    assert capture.load(path, names=model).fingerprint() == states.fingerprint()
    odd = {**optimizer.state_dict(), "param_groups": [{"params": [1, 0, 2, 3]}]}
    torch.save(odd, path)
    assert message(lambda: capture.load(path, names=model), BadValueError) == (
        f"names is a model whose parameters do not tell those of {shown}: the states do not have "
        "the shapes of the parameters in the model; give the names as a list in the optimizer's "
        "order"
    )
    torch.save(optimizer.state_dict(), path)
    assert message(lambda: capture.load(path, names=["a", "b"]), BadValueError) == (
        f"names has 2 entries, but {shown} has 4 parameters"
    )
    assert message(lambda: capture.load(path, names=list("aabc")), BadValueError) == (
        "names has two parameters named 'a'; every name must be unique"
    )
    assert message(lambda: capture.load(path, names=[1, 2, 3, 4]), BadTypeError) == (
        "names must be a model or strings, got int among them"
    )
    model[1].weight.requires_grad_(False)
    assert capture.load(path, names=model).fingerprint() == states.fingerprint()


def test_checkpoints_whose_parts_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "o.pt"
    wrong = f"{str(path)!r} holds an optimizer state_dict whose parts do not fit together"
    for state, groups in [
        (7, [{"params": [0]}]),
        ({0: 7}, [{"params": [0]}]),
        ({}, 7),
        ({}, [7]),
        ({}, [{}]),
        ({}, [{"params": 7}]),
    ]:
        torch.save({"state": state, "param_groups": groups}, path)
        assert message(lambda: capture.load(path)) == wrong
    broken = {"spec": "B64/DE@8s", "packed": torch.zeros(1, dtype=torch.uint8)}
    torch.save({"state": {0: {"m": broken}}, "param_groups": [{"params": [0]}]}, path)
    assert message(lambda: capture.load(path)) == (
        f"{str(path)!r} is damaged at 'group0.param0': a saved quantized tensor lacks "
        "format, shape, scales"
    )
    none = (
        f"{str(path)!r} must hold an optimizer state_dict ('state' and 'param_groups'), but holds "
    )
    for content, what in [({}, "an empty dict"), ([], "list"), ({"optimizer": 3}, "int")]:
        torch.save(content, path)
        assert message(lambda: capture.load(path)) == none + what


def test_checkpoints_as_a_capture(tmp_path: Path) -> None:
    path, out = tmp_path / "optimizer.pt", tmp_path / "out"
    model, optimizer = trained()
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        state["exp_avg_sq"] = state["exp_avg_sq"].double() / 3
        state["exp_avg"] = state["exp_avg"].bfloat16()
    torch.save(optimizer.state_dict(), path)
    written = write(capture.load(path, names=model), out)
    assert written == out / "step-00000002.safetensors"
    for state in optimizer.state.values():
        state["step"] += 1
    torch.save(optimizer.state_dict(), path)
    write(capture.load(path, names=model), out)
    states = capture.load(out)
    assert states.steps == [2, 3]
    for parameter, state, lazy in states.lazies():
        expected = optimizer.state[dict(model.named_parameters())[parameter]][state]
        assert lazy.dtype == expected.dtype  # no dtype is rounded on the way
        assert torch.equal(lazy.read(), expected)
    assert states.hyperparameters("0.bias")["betas"] == [0.9, 0.999]
    assert states.scalars("0.bias") == {"step": 3.0}
    small = torch.optim.AdamW([nn.Parameter(torch.ones(2))])
    small.state[small.param_groups[0]["params"][0]] = {"exp_avg": torch.ones(2)}
    torch.save(small.state_dict(), path)
    assert message(lambda: write(capture.load(path), out), OutputError) == (
        f"out={str(out)!r} holds states of other parameters ('0.bias: exp_avg' is only "
        "there); give another folder for this choice of parameters"
    )


def test_states_in_memory() -> None:
    m, v = torch.randn(3), torch.rand(3)
    states = CapturedStates.from_tensors(
        {"w": {"exp_avg": m, "exp_avg_sq": v}}, step=7, optimizer="Adam", eps=1e-6
    )
    ((name, first, second, eps),) = states.adam_pairs()
    assert (name, eps, states.step, states.steps, states.numel) == ("w", 1e-6, 7, [7], 6)
    assert torch.equal(first, m)
    assert torch.equal(second, v)
    assert [(p, s) for p, s, _ in states.items()] == [("w", "exp_avg"), ("w", "exp_avg_sq")]
    assert repr(states) == "CapturedStates(Adam, step 7, 1 parameters, 6 elements)"
    assert message(lambda: CapturedStates.from_tensors({"w": m}), BadTypeError) == (
        "the states of 'w' must be a dict of tensors by state name, got Tensor"
    )
    assert message(lambda: CapturedStates.from_tensors({"w": {"m": 3}}), BadTypeError) == (
        "state 'm' of 'w' must be a tensor, got int"
    )
    halved = CapturedStates.from_tensors({"w": {"exp_avg": m.bfloat16()}})
    assert halved.tensor("w", "exp_avg").dtype == torch.float32
    assert message(lambda: list(halved.adam_pairs())) == (
        "'memory' has no Adam states (exp_avg and exp_avg_sq); its states are exp_avg"
    )
    twisted = CapturedStates.from_tensors({"w": {"m": torch.ones(1, dtype=torch.complex64)}})
    assert message(lambda: twisted.tensor("w", "m")) == (
        "state 'm' of parameter 'w' in 'memory' is complex; only real states can be analyzed"
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_states_that_are_not_finite(bad: float, tmp_path: Path) -> None:
    model, optimizer = trained()
    optimizer.state[model[1].weight]["exp_avg_sq"].view(-1)[[5, 9]] = bad
    path = StateRecorder(optimizer, tmp_path, names=model).record()
    states = capture.load(tmp_path)
    expected = (
        f"state 'exp_avg_sq' of parameter '1.weight' in {str(path)!r} holds 2 NaN or infinite "
        "elements, the first at flat index 5; only finite states can be analyzed"
    )
    assert message(lambda: list(states.items())) == expected
    assert message(lambda: states.tensor("1.weight", "exp_avg_sq")) == expected
    assert not states.tensor("1.weight", "exp_avg_sq", check=False).isfinite().all()
    states.tensor("1.weight", "exp_avg")


@pytest.mark.slow
def test_only_torch_numpy_and_safetensors_are_needed() -> None:
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.partition('.')[0] in {'pandas', 'matplotlib', 'scipy', 'sklearn',\n"
        "                                      'pyarrow', 'typer', 'rich', 'jinja2'}:\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "import qmaps.capture\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(qmaps.__file__).parents[1])
