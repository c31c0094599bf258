"""Recording states while an optimizer trains."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import qmaps
from qmaps.capture import StateRecorder, load, snapshot
from qmaps.errors import OutputError
from qmaps.optim import AdamW4bit

OPTIMIZERS = {
    name: cls
    for name, cls in vars(torch.optim).items()
    if inspect.isclass(cls)
    and issubclass(cls, torch.optim.Optimizer)
    and name not in ("Optimizer", "SparseAdam")  # SparseAdam takes sparse gradients only
}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 6, bias=False), nn.Linear(6, 6, bias=False))


def step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(torch.randn(4, 8)).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_torch_is_recorded_bit_for_bit(name: str, tmp_path: Path) -> None:
    net = model()
    options = {"lr": 0.01, **({"momentum": 0.9} if name == "SGD" else {})}
    optimizer = OPTIMIZERS[name](net.parameters(), **options)
    with StateRecorder(optimizer, tmp_path, every=3, names=net):
        for _ in range(4):
            step(net, optimizer)
            if list(tmp_path.glob("step-*")):
                break
        expected = {
            (label, key): value.clone().float() if torch.is_tensor(value) else value
            for label, parameter in net.named_parameters()
            for key, value in optimizer.state.get(parameter, {}).items()
        }
    states = load(tmp_path)
    assert states.optimizer == name
    assert states.step == 3
    compared = 0
    for (label, key), value in expected.items():
        if torch.is_tensor(value) and key != "step":
            assert torch.equal(states.tensor(label, key), value)
            compared += 1
    assert compared
    hyper = states.hyperparameters(states.parameters()[0])
    assert hyper["lr"] == 0.01


def test_chosen_steps_and_parameters(tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.named_parameters())
    recorders = {
        "every": {"every": 2},
        "steps": {"steps": [1, 4]},
        "function": {"steps": lambda s: s == 3},
        "parameters": {"every": 5, "parameters": "1.*"},
        "predicate": {"every": 5, "parameters": lambda name: name.startswith("0")},
    }
    active = [StateRecorder(optimizer, tmp_path / k, **o) for k, o in recorders.items()]
    for _ in range(5):
        step(net, optimizer)
    for recorder in active:
        recorder.close()
    step(net, optimizer)
    steps = {k: load(tmp_path / k).steps for k in recorders}
    assert steps == {
        "every": [2, 4], "steps": [1, 4], "function": [3],
        "parameters": [5], "predicate": [5],
    }  # fmt: skip
    assert load(tmp_path / "parameters").parameters() == ["1.weight"]
    assert load(tmp_path / "predicate").parameters() == ["0.weight"]


def test_quantized_states_are_recorded_decoded(tmp_path: Path) -> None:
    layer = nn.Linear(100, 80)
    optimizer = AdamW4bit(layer.parameters())
    with StateRecorder(optimizer, tmp_path):
        layer(torch.randn(3, 100)).sum().backward()
        optimizer.step()
    state = optimizer.state[layer.weight]
    loaded = load(tmp_path)
    assert loaded.parameters() == ["group0.param0", "group0.param1"]
    for name in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(loaded.tensor("group0.param0", name), state[name].dequantize())


def test_a_resumed_training_goes_on_numbering(tmp_path: Path) -> None:
    net = model()
    first = torch.optim.AdamW(net.parameters())
    with StateRecorder(first, tmp_path, every=2):
        for _ in range(4):
            step(net, first)
    second = torch.optim.AdamW(net.parameters())
    second.load_state_dict(first.state_dict())
    (tmp_path / ".step-00000006.safetensors.1.tmp").write_bytes(b"half")
    with StateRecorder(second, tmp_path, every=2):
        for _ in range(3):
            step(net, second)
    assert load(tmp_path).steps == [2, 4, 6]
    assert not list(tmp_path.glob("*.tmp"))
    with pytest.raises(OutputError) as caught:
        StateRecorder(torch.optim.SGD(net.parameters(), lr=1), tmp_path)
    assert str(caught.value) == (
        f"out={str(tmp_path)!r} holds states of AdamW; give another folder for SGD"
    )


def test_snapshots_without_step_counts_are_not_counted_from(tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(4):
        step(net, optimizer)
    info = snapshot.Info(step=4, optimizer="AdamW", parameters={"group0.param0": [6, 8]})
    tensors = {("group0.param0", "exp_avg"): snapshot.Lazy.of(torch.ones(6, 8))}
    snapshot.write(snapshot.path_of(tmp_path, 4), info, tensors)
    with StateRecorder(optimizer, tmp_path, every=2):
        for _ in range(2):
            step(net, optimizer)
    assert load(tmp_path).steps == [4, 6]


def layer_by_layer(
    optimizer: torch.optim.Optimizer, layers: list[nn.Linear], steps: int, *, clear: bool = False
) -> None:
    """Train one layer after the other, each from its first step on."""
    for layer in layers:
        if clear:
            optimizer.state.clear()
        for _ in range(steps):
            optimizer.zero_grad()
            layer(torch.ones(1, 8)).square().sum().backward()
            optimizer.step()


@pytest.mark.parametrize("clear", [False, True])
def test_the_recorder_counts_steps_itself(clear: bool, tmp_path: Path) -> None:
    def built() -> tuple[list[nn.Linear], torch.optim.Optimizer]:
        layers = [nn.Linear(8, 8, bias=False) for _ in range(4)]
        return layers, torch.optim.AdamW(layer.weight for layer in layers)

    layers, optimizer = built()
    with StateRecorder(optimizer, tmp_path, every=5):
        layer_by_layer(optimizer, layers[:2], 10, clear=clear)
    assert load(tmp_path).steps == [5, 10, 15, 20]
    # In another process: the states have 10 steps, and the snapshots identify them.
    state = optimizer.state_dict()
    layers, optimizer = built()
    with StateRecorder(optimizer, tmp_path, every=5):
        optimizer.load_state_dict(state)
        layer_by_layer(optimizer, layers[2:], 10, clear=clear)
        assert load(tmp_path).steps == [5, 10, 15, 20, 25, 30, 35, 40]
    with StateRecorder(optimizer, tmp_path / "at", every=5, start=100):
        optimizer.load_state_dict(built()[1].state_dict())  # without states
        layer_by_layer(optimizer, layers[:1], 5)
    assert load(tmp_path / "at").steps == [105]


def test_steps_that_are_skipped_do_not_count(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.ones(8, 8))
    ours = qmaps.optim.AdamW([weight], nonfinite="skip")
    fused = torch.optim.AdamW([weight], fused=True)
    recorders = [StateRecorder(ours, tmp_path / "a"), StateRecorder(fused, tmp_path / "b")]
    for number in range(4):
        weight.grad = torch.full((8, 8), float("nan") if number == 1 else 1.0)
        fused.found_inf = torch.tensor(float(number == 1))  # as torch.amp.GradScaler does
        ours.step()
        fused.step()
    for recorder in recorders:
        recorder.close()
        states = load(recorder.folder)
        assert states.steps == [1, 2, 3]
        assert states.scalars("group0.param0") == {"step": 3}


def test_the_optimizer_in_a_wrapper_of_accelerate(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    net = nn.Linear(80, 80)
    prepared = accelerate.Accelerator(cpu=True).prepare(AdamW4bit(net.parameters()))
    with (
        StateRecorder(prepared, tmp_path, names=net) as recorder,
        qmaps.Monitor(prepared, None, every=2) as monitor,
    ):
        for _ in range(2):
            net(torch.ones(4, 80)).sum().backward()
            prepared.step()
    assert recorder.optimizer is prepared.optimizer
    assert (load(tmp_path).optimizer, load(tmp_path).steps) == ("AdamW4bit", [1, 2])
    assert {row["step"] for row in monitor.rows} == {2}


def test_a_folder_is_free_after_an_error(tmp_path: Path) -> None:
    class Broken(torch.optim.SGD):
        def register_step_post_hook(self, hook: object) -> None:
            raise KeyError("broken")

    class Bare(torch.optim.Optimizer):
        def __init__(self) -> None:
            pass

    with pytest.raises(KeyError, match="broken"):
        StateRecorder(Broken(model().parameters()), tmp_path)
    with pytest.raises(TypeError) as caught:
        StateRecorder(Bare(), tmp_path)
    assert str(caught.value) == "optimizer must be a torch.optim.Optimizer, got Bare"
    StateRecorder(torch.optim.SGD(model().parameters()), tmp_path).close()


def test_a_failed_write_leaves_whole_snapshots_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qmaps.capture import snapshot

    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    recorder = StateRecorder(optimizer, tmp_path)
    step(net, optimizer)

    def half(tensors, path, metadata) -> None:
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(snapshot, "save_file", half)
    with pytest.raises(KeyboardInterrupt):
        step(net, optimizer)
    recorder.close()
    assert {path.name for path in tmp_path.iterdir()} == {
        "step-00000001.safetensors",
    }
    assert load(tmp_path).steps == [1]


@pytest.mark.slow
def test_a_killed_process_leaves_a_readable_folder(tmp_path: Path) -> None:
    code = (
        "import sys, torch, qmaps\n"
        "net = torch.nn.Linear(300, 300)\n"
        "o = torch.optim.AdamW(net.parameters())\n"
        "r = qmaps.capture.StateRecorder(o, sys.argv[1])\n"
        "while True:\n"
        "    net(torch.ones(1, 300)).sum().backward(); o.step()\n"
    )
    root = Path(qmaps.__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=env)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("step-*"))) < 8 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    states = load(tmp_path)
    assert len(states.steps) >= 8
    for number in states.steps:
        assert load(tmp_path, step=number).numel == 2 * (300 * 300 + 300)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every=0 must be an int of at least 1"),
        (
            {"parameters": "2.*"},
            ("parameters='2.*' matches no parameter; the names are 0.weight, 1.weight"),
        ),
    ],
)
def test_bad_options(options: dict[str, object], message: str, tmp_path: Path) -> None:
    net = model()
    with pytest.raises(ValueError) as caught:
        StateRecorder(torch.optim.AdamW(net.named_parameters()), tmp_path / "x", **options)
    assert str(caught.value) == message
    assert not (tmp_path / "x").exists()


def test_bad_optimizer_and_folder(tmp_path: Path) -> None:
    with pytest.raises(TypeError) as caught:
        StateRecorder(model(), tmp_path)  # type: ignore[arg-type]
    assert str(caught.value) == "optimizer must be a torch.optim.Optimizer, got Sequential"
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        StateRecorder(torch.optim.AdamW(model().parameters()), tmp_path / "file")


def test_names_of_a_group_that_is_added_later_may_repeat(tmp_path: Path) -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(first.named_parameters())
    with StateRecorder(optimizer, tmp_path):
        for layers in ((first,), (first, second)):
            sum(layer(torch.ones(1, 2)).sum() for layer in layers).backward()
            optimizer.step()
            if layers == (first,):
                optimizer.add_param_group({"params": list(second.named_parameters())})
    names = load(tmp_path).parameters()
    assert names == ["weight", "bias", "group1.param0", "group1.param1"]
