"""Recorded gradients: bit for bit, sampled under a budget, and never of another run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qmaps import capture
from qmaps.capture import Gradients, StateRecorder, snapshot
from qmaps.capture.gradients import rows_of, samples, unit
from qmaps.errors import BadTypeError, BadValueError, CaptureError


def train(
    out: Path, steps: int, seed: int = 0, shape: tuple[int, int] = (64, 96), **options: object
) -> dict[int, Tensor]:
    """Train one layer with a closure, and return its gradients by step."""
    torch.manual_seed(seed)
    layer = nn.Linear(shape[1], shape[0], bias=False)
    optimizer = torch.optim.AdamW(layer.parameters())
    gradients_by_step: dict[int, Tensor] = {}
    with StateRecorder(optimizer, out, names=layer, **options):
        for number in range(1, steps + 1):

            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = layer(torch.randn(4, shape[1])).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)
            assert layer.weight.grad is not None
            gradients_by_step[number] = layer.weight.grad.clone()
    return gradients_by_step


def test_the_windows_after_each_snapshot_bit_for_bit(tmp_path: Path) -> None:
    expected = train(tmp_path, 12, every=5, gradients=3)
    for start, window in ((5, [6, 7, 8]), (10, [11, 12])):
        states = capture.load(tmp_path, step=start)
        assert states.window() == window
        assert states.rows("weight") is None
        actual = dict(states.gradients("weight"))
        assert list(actual) == window
        assert all(torch.equal(actual[step], expected[step]) for step in window)
    assert len(list(tmp_path.glob("gradients-*"))) == 5


def test_overlapping_windows_are_one(tmp_path: Path) -> None:
    expected = train(tmp_path, 9, every=3, gradients=4)
    states = capture.load(tmp_path, step=3)
    assert states.window() == [4, 5, 6, 7, 8, 9]
    assert all(torch.equal(g, expected[step]) for step, g in states.gradients("weight"))
    snapshot.path_of(tmp_path, 6).unlink()  # its gradients no longer follow a snapshot
    assert capture.load(tmp_path, step=3).window() == [4, 5, 6]


def test_recorded_gradients_reproduce_the_moments(tmp_path: Path) -> None:
    train(tmp_path, 8, every=4, gradients=4)
    before, after = capture.load(tmp_path, step=4), capture.load(tmp_path, step=8)
    m = before.tensor("weight", "exp_avg").double()
    for _, gradient in before.gradients("weight"):
        m = 0.9 * m + 0.1 * gradient.double()
    torch.testing.assert_close(m.float(), after.tensor("weight", "exp_avg"))


def test_samples_are_whole_rows_and_blocks_within_the_budget(tmp_path: Path) -> None:
    budget = 3 * 40_000
    options = Gradients(steps=3, max_bytes=budget)
    expected = train(tmp_path, 6, shape=(512, 96), every=3, gradients=options)
    states = capture.load(tmp_path, step=3)
    rows = states.rows("weight")
    assert rows is not None
    # lcm(96, 2048) / 96 = 64 rows are three blocks.
    assert rows.view(-1, 64)[:, 0].tolist() == [256]
    assert torch.equal(rows, torch.arange(256, 320))
    written = 0
    for step, gradient in states.gradients("weight"):
        assert torch.equal(gradient, expected[step][rows])
        written += gradient.nbytes + rows.nbytes
    assert written <= budget
    with pytest.raises(BadValueError) as caught:
        train(tmp_path / "b", 1, shape=(512, 96), gradients=Gradients(steps=3, max_bytes=1000))
    least = 3 * (64 * 96 * 4 + 64 * 8)
    assert str(caught.value) == (
        f"gradients: max_bytes=1000 is too small for steps=3 of 1 parameters; at least {least} are "
        "needed"
    )
    assert not (tmp_path / "b").exists()


def test_gradients_that_fit_are_whole() -> None:
    assert samples({"bias": torch.zeros(1_000_000)}, 4_000_000) == {"bias": None}


@pytest.mark.parametrize("shape", [[50257, 768], [300, 1000], [100_000], [64, 3, 3, 3], [7]])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.99, 1.0])
def test_rows_of(shape: list[int], share: float) -> None:
    wanted = round(share * math.prod(shape))
    rows = rows_of(shape, wanted)
    length = unit(shape)
    width = math.prod(shape[1:])
    if rows is None:
        assert wanted + length * width > math.prod(shape) - length * width
        return
    assert torch.equal(rows, rows.unique())
    assert 0 <= int(rows[0]) <= int(rows[-1]) < shape[0]
    units = rows.view(-1, length)
    assert torch.equal(units - units[:, :1], torch.arange(length).expand_as(units))
    assert len(rows) * width <= max(wanted, length * width)
    assert len(rows) * width > wanted - length * width
    # Spread evenly: no gap is more than about twice another.
    if len(units) > 2:
        gaps = units[:, 0].diff()
        assert int(gaps.max()) <= int(gaps.min()) + length


def test_missing_gradients(tmp_path: Path) -> None:
    table, idle = nn.Embedding(50, 4), nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.AdamW([table.weight, idle])
    names = [("table", table.weight), ("idle", idle)]
    expected = {}
    with StateRecorder(optimizer, tmp_path, names=names, steps=[1], gradients=3):
        for step in range(1, 4):
            optimizer.zero_grad()
            table(torch.tensor([step, 3])).sum().backward()
            expected[step] = table.weight.grad.clone()
            optimizer.step()
    states = capture.load(tmp_path)
    actual = dict(states.gradients("table"))
    assert list(actual) == [2, 3]
    assert all(torch.equal(actual[step], expected[step]) for step in actual)
    assert states.parameters() == ["table"]


def unfreezing(out: Path, steps: int, state: dict | None = None, **options: Any) -> dict:
    """Train one layer, and after half of the steps, or with a state, two; return the state."""
    torch.manual_seed(0)
    head, body = (nn.Linear(64, 64, bias=False) for _ in range(2))
    names = [("head", head.weight), ("body", body.weight)]
    optimizer = torch.optim.AdamW([head.weight])
    if state is not None:
        optimizer.add_param_group({"params": [body.weight]})
        optimizer.load_state_dict(state)
    with StateRecorder(optimizer, out, names=names, **options):
        for number in range(steps):
            if state is None and number == steps // 2:
                optimizer.add_param_group({"params": [body.weight]})
            optimizer.zero_grad()
            head(body(torch.randn(4, 64))).square().mean().backward()
            optimizer.step()
    return optimizer.state_dict()


def test_parameters_that_are_added_have_no_gradients(tmp_path: Path) -> None:
    """The group is added after step 5; its states are recorded from then on."""
    options = {"every": 4, "gradients": Gradients(3, 3 * 17_000)}
    state = unfreezing(tmp_path, 10, **options)
    unfreezing(tmp_path, 2, state, **options)
    assert capture.load(tmp_path).steps == [4, 8, 12]
    first, second = (capture.load(tmp_path, step=step) for step in (4, 8))
    assert (first.parameters(), second.parameters()) == (["head"], ["head", "body"])
    assert [first.window(), second.window()] == [[5, 6, 7], [9, 10]]
    assert first.rows("head") is second.rows("head") is None
    assert second.window("body") == []
    skipped = snapshot.Snapshot(tmp_path / "gradients-00000006.safetensors").info.skipped
    assert skipped == ["body: gradient (of a parameter that was added later)"]
    unfreezing(tmp_path, 10, **options)  # once more from the beginning
    assert capture.load(tmp_path).steps == [4, 8, 12]


def test_windows_end_where_other_rows_are_recorded(tmp_path: Path) -> None:
    train(tmp_path, 6, every=2, gradients=2)
    train(tmp_path, 4, every=2, gradients=Gradients(2, 2 * 17_000), start=5)
    assert capture.load(tmp_path, step=4).window() == [5, 6]
    assert capture.load(tmp_path, step=6).window() == [7, 8, 9]


def test_another_run_is_detected(tmp_path: Path) -> None:
    train(tmp_path, 6, every=4, gradients=2)
    train(tmp_path, 4, seed=1, every=4)  # overwrites the states without gradients of its own
    with pytest.raises(CaptureError) as caught:
        capture.load(tmp_path).window()
    assert str(caught.value) == (
        f"'gradients-00000005.safetensors' was recorded in another run than the states in "
        f"'{tmp_path}/step-00000004.safetensors'; delete the gradients or record both again"
    )
    train(tmp_path, 5, seed=2, every=4, gradients=2)  # removes files it does not overwrite
    assert capture.load(tmp_path).window() == [5]


def test_damage_is_found(tmp_path: Path) -> None:
    train(tmp_path, 6, every=4, gradients=2)
    path = tmp_path / "gradients-00000006.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    states = capture.load(tmp_path)
    assert states.window() == [5, 6]
    with pytest.raises(CaptureError, match="is damaged: the checksum of tensor 0 is wrong"):
        list(states.gradients("weight"))
    path.write_bytes(content[:100])
    with pytest.raises(CaptureError, match="is corrupt or truncated"):
        capture.load(tmp_path).window()


def test_non_finite_gradients_are_refused(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.AdamW([weight])
    with StateRecorder(optimizer, tmp_path, steps=[1], gradients=2):
        for value in (1.0, math.inf):
            weight.grad = torch.full((4,), value)
            optimizer.step()
    with pytest.raises(CaptureError) as caught:
        list(capture.load(tmp_path).gradients("group0.param0"))
    assert str(caught.value) == (
        "the gradient of parameter 'group0.param0' at step 2 beside "
        f"'{tmp_path}/step-00000001.safetensors' holds NaN or infinity; only finite real gradients "
        "can be replayed"
    )


def test_snapshots_without_gradients_are_written_as_before(tmp_path: Path) -> None:
    train(tmp_path, 4, every=4)
    assert b"window" not in snapshot.path_of(tmp_path, 4).read_bytes()[:4000]
    assert capture.load(tmp_path).window() == []
    assert list(capture.load(tmp_path).gradients("weight")) == []


@pytest.mark.parametrize(
    ("gradients", "error", "message"),
    [
        (1, BadValueError, "gradients: steps=1 must be an int of at least 2"),
        (True, BadTypeError, "gradients=True must be a number of steps or "
         "qmaps.capture.Gradients(steps, max_bytes)"),
        ("all", BadTypeError, "gradients='all' must be a number of steps or "
         "qmaps.capture.Gradients(steps, max_bytes)"),
    ],
)  # fmt: skip
def test_bad_input(gradients: object, error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error) as caught:
        train(tmp_path / "out", 1, gradients=gradients)
    assert str(caught.value) == message
    assert not (tmp_path / "out").exists()
    with pytest.raises(BadValueError) as caught:
        Gradients(max_bytes=0)
    assert str(caught.value) == "gradients: max_bytes=0 must be an int of at least 1"
    with pytest.raises(BadValueError) as caught:
        Gradients(steps=2.5)
    assert str(caught.value) == "gradients: steps=2.5 must be an int of at least 2"
