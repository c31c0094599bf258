from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path

import pytest
import torch

from qmaps.errors import OutputError
from qmaps.lab import workloads
from qmaps.lab.workloads import train
from qmaps.optim import AdamW

TINY = dataclasses.replace(workloads.get("stdlib-lm-tiny"), validation_batches=1)
STEPS = 12


def optimizer(net, work) -> torch.optim.Optimizer:
    pair = {"exp_avg": "B128/DE@4s+sr", "exp_avg_sq": "B128/quantile@4u"}
    return AdamW(net.parameters(), lr=work.lr, state_quantizers=pair, refit_every=5)


def run(out: Path, **options):
    settings = {"label": "x", "steps": STEPS, "checkpoint_every": 5, "validate_every": 6}
    return train(TINY, optimizer, out=out, **{**settings, **options})


def weights(out: Path) -> dict[str, torch.Tensor]:
    return torch.load(out / "model.pt", weights_only=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory):
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("whole")
    return out, run(out)


def test_a_run_records_losses_and_learns(finished) -> None:
    out, result = finished
    train_losses = [r["value"] for r in result.losses if r["split"] == "train"]
    assert len(train_losses) == STEPS
    assert train_losses[-1] < train_losses[0]
    held_out = {r["step"] for r in result.losses if r["split"] == "val"}
    assert held_out == {6, 12}
    assert result.final["bits_per_byte"] == pytest.approx(result.final["loss"] / 0.6931472)
    assert result.first_nonfinite_step is None
    files = sorted(path.name for path in out.iterdir())
    assert files == ["losses.csv", "model.pt", "result.json", "run.json"]


@pytest.mark.parametrize("at", [1, 5, 8])
def test_ctrl_c_and_resume_is_bit_for_bit(at: int, finished, tmp_path: Path) -> None:
    def press(step: int, steps: int, loss: float) -> None:
        if step == at:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, progress=press)
    later_steps = []
    resumed = run(tmp_path, progress=lambda step, *_: later_steps.append(step))
    assert later_steps[0] == at + 1
    assert resumed == finished[1]
    ours, theirs = weights(tmp_path), weights(finished[0])
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_ctrl_c_within_a_step_waits_for_its_end(finished, tmp_path: Path) -> None:
    class Pressing(type(TINY)):
        name = TINY.name

        def batch(self, step: int, seed: int):
            if step == 7 and not (tmp_path / "pressed").exists():
                (tmp_path / "pressed").touch()
                os.kill(os.getpid(), signal.SIGINT)
            return super().batch(step, seed)

    work = Pressing(**{f.name: getattr(TINY, f.name) for f in dataclasses.fields(TINY)})
    options = {"label": "x", "steps": STEPS, "validate_every": 6, "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        train(work, optimizer, **options)
    steps = []
    resumed = train(work, optimizer, **options, progress=lambda step, *_: steps.append(step))
    assert steps[0] == 8
    assert resumed == finished[1]


def test_a_finished_run_is_not_repeated(finished) -> None:
    out, result = finished
    calls = []
    assert run(out, progress=lambda *a: calls.append(a)) == result
    assert not calls


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 13}, "holds a run with steps=12, but 13 was requested"),
        ({"seed": 1}, "holds a run with seed=0, but 1 was requested"),
        ({"label": "y"}, "holds a run with label='x', but 'y' was requested"),
    ],
)
def test_another_run_in_the_folder_is_refused(options, message: str, finished) -> None:
    out, _ = finished
    with pytest.raises(OutputError) as caught:
        run(out, **options)
    assert str(caught.value) == (
        f"out={str(out)!r} {message}; delete the folder or give another one"
    )


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    def stop(step: int, *_: object) -> None:
        if step == 6:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        run(tmp_path, progress=stop)
    checkpoint = tmp_path / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    with pytest.raises(OutputError, match="cannot be resumed"):
        run(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(OutputError, match="missing or damaged"):
        run(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps=0 must be an int of at least 1"),
        ({"seed": -1}, "seed=-1 must be an int of at least 0"),
        ({"checkpoint_every": 0}, "checkpoint_every=0 must be an int of at least 1"),
        ({"validate_every": 1.5}, "validate_every=1.5 must be an int of at least 1"),
    ],
)
def test_bad_options(options, message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        run(tmp_path / "new", **options)
    assert str(caught.value) == message
    assert not (tmp_path / "new").exists()


def test_a_loss_that_is_lost_is_recorded(tmp_path: Path) -> None:
    def wild(net, work):
        return torch.optim.SGD(net.parameters(), lr=1.0, weight_decay=1e30)

    result = train(TINY, wild, out=tmp_path, label="wild", steps=4)
    assert result.first_nonfinite_step is not None
    assert json.loads((tmp_path / "result.json").read_text())["first_nonfinite_step"]


def test_options_of_the_optimizer_belong_to_the_run(finished) -> None:
    out, _ = finished

    def other(net, work) -> torch.optim.Optimizer:
        changed = optimizer(net, work)
        changed.param_groups[0]["eps"] = 1e-6
        return changed

    with pytest.raises(OutputError, match=r"group0\.eps=1e-08, but 1e-06 was requested"):
        train(TINY, other, out=out, label="x", steps=STEPS, validate_every=6)


def test_the_schedule_scales_the_rate_of_each_group(tmp_path: Path) -> None:
    optimizers = []

    def two_groups(net, work) -> torch.optim.Optimizer:
        first, *others = net.parameters()
        groups = [{"params": [first], "lr": 0.1 * work.lr}, {"params": others}]
        optimizers.append(torch.optim.SGD(groups, lr=work.lr))
        return optimizers[-1]

    rates = []

    def note(*_: object) -> None:
        rates.append([group["lr"] for group in optimizers[-1].param_groups])
        if len(rates) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(TINY, two_groups, out=tmp_path, steps=4, progress=note)
    train(TINY, two_groups, out=tmp_path, steps=4, progress=note)
    schedule = [TINY.learning_rate(step, 4) for step in (1, 2, 3, 4)]
    assert [rate for _, rate in rates] == schedule
    assert [rate for rate, _ in rates] == pytest.approx([0.1 * rate for rate in schedule])
