"""Reading captures and checkpoints."""

from __future__ import annotations

import math
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qmaps
from qmaps.analyze.replay.source import betas_of
from qmaps.analyze.states import opened
from qmaps.capture import CapturedStates, StateRecorder, load
from qmaps.capture.conversion import convert_file
from qmaps.capture.lint import lint_file
from qmaps.capture.recorder import write
from qmaps.errors import BadValueError, CaptureError
from qmaps.storage import checkpoint
from qmaps.sweep.plan import digest_of
from tests.capture.fixtures import HERE
from tests.outside import CALLS, NAME, Outside

Trained = tuple[nn.Module, torch.optim.Optimizer]


@pytest.fixture
def trained() -> Trained:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 10), nn.Linear(10, 5))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, eps=1e-6)
    for _ in range(3):
        net(torch.randn(4, 20)).square().mean().backward()
        optimizer.step()
    return net, optimizer


NAMES = ["0.weight", "0.bias", "1.weight", "1.bias"]


@pytest.mark.parametrize("wrap", [
    lambda s: s,
    lambda s: [s],
    lambda s: {"optimizer": s, "epoch": 3},
    lambda s: {"optimizer_state_dict": s},
    lambda s: {"optimizer_states": [s], "callbacks": {}},
])  # fmt: skip
def test_checkpoints(wrap, trained, tmp_path: Path) -> None:
    net, optimizer = trained
    torch.save(wrap(optimizer.state_dict()), tmp_path / "optimizer.pt")
    states = load(tmp_path / "optimizer.pt", names=net)
    assert states.parameters() == NAMES
    assert states.step == 3
    assert states.eps("0.bias") == 1e-6
    for (name, parameter), (label, m, v, eps) in zip(
        net.named_parameters(), states.adam_pairs(), strict=True
    ):
        assert (label, eps) == (name, 1e-6)
        assert torch.equal(m, optimizer.state[parameter]["exp_avg"])
        assert torch.equal(v, optimizer.state[parameter]["exp_avg_sq"])
    assert load(tmp_path / "optimizer.pt").parameters()[0] == "group0.param0"


def test_names_that_torch_stored_and_the_old_file_format(trained, tmp_path: Path) -> None:
    net, _ = trained
    optimizer = torch.optim.AdamW(net.named_parameters())
    net(torch.randn(4, 20)).sum().backward()
    optimizer.step()
    path = tmp_path / "o.pt"
    torch.save(optimizer.state_dict(), path, _use_new_zipfile_serialization=False)
    assert load(path).parameters() == NAMES


def test_quantized_checkpoints_are_read_decoded(tmp_path: Path) -> None:
    layer = nn.Linear(100, 80)
    optimizer = qmaps.optim.AdamW8bit(layer.named_parameters())
    layer(torch.randn(3, 100)).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "o.pt")
    actual = load(tmp_path / "o.pt").tensor("weight", "exp_avg")
    assert torch.equal(actual, optimizer.state[layer.weight]["exp_avg"].dequantize())


def test_numbers_of_numpy_in_groups(trained, tmp_path: Path) -> None:
    net, optimizer = trained
    optimizer.param_groups[0]["lr"] = np.cos(np.float64(0.3))  # as a schedule computes it
    torch.save(optimizer.state_dict(), tmp_path / "o.pt")
    actual = load(tmp_path / "o.pt", names=net).hyperparameters("0.weight")["lr"]
    assert (actual, type(actual)) == (math.cos(0.3), float)


def test_a_checkpoint_as_a_capture(trained, tmp_path: Path) -> None:
    net, optimizer = trained
    torch.save(optimizer.state_dict(), tmp_path / "o.pt")
    write(load(tmp_path / "o.pt", names=NAMES), tmp_path / "states")
    recorded, loaded = load(tmp_path / "states"), load(tmp_path / "o.pt", names=net)
    assert recorded.steps == [3]
    assert recorded.fingerprint() == loaded.fingerprint()


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
CHECKPOINTS = {
    "endless": (ENDLESS,
                "must hold an optimizer state_dict ('state' and 'param_groups'), but holds list"),
    "empty": (b"", "is empty"),
    "text": (b"hello world", "is not a checkpoint that torch can load; it is corrupt, truncated, "
                             "or a file of another kind"),
    "model": ({"w": torch.ones(2), "b": 1},
              "must hold an optimizer state_dict ('state' and 'param_groups'), but holds a dict "
              "with w, b"),
    "tensor": (torch.ones(3),
               "must hold an optimizer state_dict ('state' and 'param_groups'), but holds Tensor"),
    "stateless": ({"state": {}, "param_groups": [{"params": [0], "lr": 0.1}]},
                  "is an optimizer checkpoint that holds no states"),
    "unsafe": ({"state": Outside(), "param_groups": []},
               f"would have to run code to load ({NAME}); record its states with "
               "qmaps.capture.StateRecorder, or save plain tensors and numbers"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_other_files_are_refused(kind: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    content, message = CHECKPOINTS[kind]
    path = tmp_path / "o.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(CaptureError) as caught:
        load(path)
    assert str(caught.value) == f"{str(path)!r} {message}"
    assert not CALLS


def test_missing_and_empty_places(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path / "none", "does not exist"),
        (tmp_path / "pipe", "is neither a file nor a folder"),
        (
            tmp_path,
            "holds no captured steps (step-*.safetensors), and no checkpoint of a known format",
        ),
    ):
        with pytest.raises(CaptureError) as caught:
            load(path)
        assert str(caught.value) == f"{str(path)!r} {message}"
    with pytest.raises(CaptureError, match=r"x' does not exist$"):
        load("x" * 300)


def test_a_checkpoint_without_adam_states(tmp_path: Path) -> None:
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    layer(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    path = tmp_path / "o.pt"
    torch.save(optimizer.state_dict(), path)
    with pytest.raises(CaptureError) as caught:
        list(load(path).adam_pairs())
    assert str(caught.value) == (
        f"{str(path)!r} has no Adam states (exp_avg and exp_avg_sq); its states are momentum_buffer"
    )


def test_every_truncation_of_a_capture_or_checkpoint_is_refused(trained, tmp_path: Path) -> None:
    _, optimizer = trained
    StateRecorder(optimizer, tmp_path / "s").record()
    capture = next((tmp_path / "s").glob("step-*"))
    torch.save(optimizer.state_dict(), tmp_path / "o.pt")
    for path in (capture, tmp_path / "o.pt"):
        data = path.read_bytes()
        for size in range(0, len(data), 53):
            path.write_bytes(data[:size])
            with pytest.raises(CaptureError):
                for _ in load(path).items():
                    pass
        path.write_bytes(data)
        assert load(path).numel


def test_a_file_of_a_later_format_or_of_something_else(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(2)}, path)
    with pytest.raises(CaptureError, match="is a safetensors file with the tensor 'a'; states"):
        load(path)
    save_file({"a": torch.ones(2)}, path, metadata={"qmaps_capture": '{"format": 9}'})
    with pytest.raises(CaptureError, match="has capture format 9; the supported format is 1"):
        load(path)


def test_steps_and_unknown_names(trained, tmp_path: Path) -> None:
    net, optimizer = trained
    with StateRecorder(optimizer, tmp_path, names=net):
        for _ in range(2):
            optimizer.step()
    assert load(tmp_path, step=4).step == 4
    assert load(tmp_path / "step-00000004.safetensors").steps == [4]
    states = load(tmp_path)
    for call, message in (
        (lambda: load(tmp_path, step=9), f"step=9 is not in {str(tmp_path)!r}; it has 4, 5"),
        (lambda: states.tensor("x", "exp_avg"),
         f"parameter='x' is not in {states.source!r}; its parameters are {', '.join(NAMES)}"),
        (lambda: states.tensor("0.bias", "y"),
         "state='y' is not recorded for '0.bias'; the recorded states are exp_avg, exp_avg_sq"),
        (lambda: load(tmp_path / "step-00000004.safetensors", step=4),
         "step=4 needs a folder of captures; "
         f"{str(tmp_path / 'step-00000004.safetensors')!r} is one file"),
    ):  # fmt: skip
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value) == message


def test_states_that_cannot_be_analyzed() -> None:
    m = torch.ones(3, 2)
    bad = m.clone()
    bad[1, 1] = float("nan")
    states = CapturedStates.from_tensors({"w": {"exp_avg": bad, "exp_avg_sq": m}})
    with pytest.raises(CaptureError) as caught:
        list(states.adam_pairs())
    assert str(caught.value) == (
        "state 'exp_avg' of parameter 'w' in 'memory' holds 1 NaN or infinite elements, the first "
        "at flat index 3; only finite states can be analyzed"
    )
    assert bool(states.tensor("w", "exp_avg", check=False).isnan().any())
    for second, message in ((-m, "has negative values"), (m[:2], "the shapes must be equal")):
        states = CapturedStates.from_tensors({"w": {"exp_avg": m, "exp_avg_sq": second}})
        with pytest.raises(CaptureError, match=message):
            list(states.adam_pairs())


def test_entries_of_no_parameter_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "o.pt"
    state = {0: {"exp_avg": torch.ones(2)}, "k": torch.tensor(3), "inner": {"s": torch.ones(2)}}
    torch.save({"state": state, "param_groups": [{"params": [0]}]}, path)
    states = load(path)
    assert states.parameters() == ["group0.param0"]
    assert states.skipped == ["k (int64 strided), of no parameter", "inner (dict), of no parameter"]


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]
)
def test_dtypes_that_are_not_read_are_named(dtype: torch.dtype, tmp_path: Path) -> None:
    path = tmp_path / "o.pt"
    state = {name: torch.ones(2).to(dtype) for name in ("exp_avg", "exp_avg_sq")}
    torch.save({"state": {0: state}, "param_groups": [{"params": [0]}]}, path)
    kind = f"{str(dtype).removeprefix('torch.')} strided"
    message = (
        f"{str(path)!r} is an optimizer checkpoint whose states are of types that are not read, "
        f"such as group0.param0: exp_avg ({kind})"
    )
    with pytest.raises(CaptureError) as caught:
        load(path)
    assert str(caught.value) == message
    state["exp_avg"] = torch.ones(2)
    torch.save({"state": {0: state}, "param_groups": [{"params": [0]}]}, path)
    assert load(path).skipped == [f"group0.param0: exp_avg_sq ({kind})"]


def test_the_steps_of_a_long_capture_are_shortened(tmp_path: Path) -> None:
    for step in range(100):
        (tmp_path / f"step-{step:08d}.safetensors").touch()
    with pytest.raises(ValueError, match=r"; it has 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, \.\.\., 90, 91,"):
        load(tmp_path, step=700)


def test_states_are_decoded_once(trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, optimizer = trained
    torch.save(optimizer.state_dict(), tmp_path / "o.pt")
    calls: list[int] = []
    loading = sys.modules["qmaps.capture.load"]
    original = loading.decoded
    monkeypatch.setattr(loading, "decoded", lambda state: (calls.append(1), original(state))[1])
    load(tmp_path / "o.pt", names=net)
    assert len(calls) == 4
    calls.clear()
    convert_file(tmp_path / "o.pt", tmp_path / "new.pt", to="qmaps")
    assert not calls  # states are decoded for this warning only where step is 0


def test_the_file_is_opened_once(trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, optimizer = trained
    path = tmp_path / "o.pt"
    torch.save({"optimizer": optimizer.state_dict(), "model": net.state_dict()}, path)
    opened: list[Path] = []
    original = checkpoint.load

    def opens(source: Path, **options: Any) -> Any:
        opened.append(source)
        return original(source, **options)

    monkeypatch.setattr(checkpoint, "load", opens)
    assert load(path).parameters() == NAMES
    assert opened == [path]
    lint_file(path)
    assert opened == [path, path]


FLAX = HERE / "flax/masked/state.msgpack"


def test_options_that_another_framework_leaves_in_code() -> None:
    message = (
        f"{str(FLAX)!r} has no betas and no eps; torch's betas=(0.9, 0.999) and eps=1e-8 is "
        "assumed where an analysis needs it; give the optimizer's to load, or to qmaps capture "
        "--checkpoint"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        load(FLAX)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        states = load(FLAX, betas=(0.9, 0.95), eps=1e-7)
    assert betas_of(states, "dense.bias") == (0.9, 0.95)
    assert states.eps("dense.bias") == 1e-7
    assert states.given == {"betas": (0.9, 0.95), "eps": 1e-7}
    assert load(HERE / "mlx/lion").hyperparameters("layers.0.bias") == {"lr": 1e-3}


@pytest.mark.filterwarnings("ignore:.*has no betas")
def test_given_options_are_those_of_workers_and_of_a_digest() -> None:
    states = load(FLAX, betas=(0.9, 0.95), eps=1e-7)
    again = opened(states.source, states.parameters(), tuple(states.given.items()))
    assert again.eps("dense.bias") == 1e-7
    digests = {
        digest_of(captured) for captured in (states, again, load(FLAX), load(FLAX, eps=1e-7))
    }
    assert len(digests) == 3


def test_options_that_the_checkpoint_has(trained: Trained, tmp_path: Path) -> None:
    path = tmp_path / "optimizer.pt"
    torch.save(trained[1].state_dict(), path)
    assert load(path, betas=(0.9, 0.999)).given == {"betas": (0.9, 0.999)}
    message = f"eps=1e-08 is not that of {str(path)!r}, which has eps=1e-06; leave it out"
    with pytest.raises(CaptureError, match=f"^{re.escape(message)}$"):
        load(path, eps=1e-8)


def test_groups_of_another_form_have_no_options(tmp_path: Path) -> None:
    path = tmp_path / "optimizer.pt"
    for groups in (7, [7]):
        torch.save({"state": {}, "param_groups": groups}, path)
        with pytest.raises(CaptureError, match="parts do not fit together"):
            load(path, eps=1e-8)


def test_captured_states_have_their_options(tmp_path: Path) -> None:
    write(load(FLAX, betas=(0.9, 0.95), eps=1e-7), tmp_path)
    assert load(tmp_path).hyperparameters("dense.bias") == {"betas": [0.9, 0.95], "eps": 1e-7}
    message = (
        f"eps needs an optimizer checkpoint; {str(tmp_path)!r} holds captured states, which have "
        "their options"
    )
    with pytest.raises(BadValueError, match=f"^{re.escape(message)}$"):
        load(tmp_path, eps=1e-7)
