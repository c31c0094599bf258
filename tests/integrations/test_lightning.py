"""The Trainer of Lightning, on a small net."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from qmaps import capture, optim
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.engines.masters import MASTER
from tests.training.runs import assert_same, make, net

OPTIONS: dict[str, Any] = {
    "lr": 1e-2,
    "min_quantized_size": 0,
    "state_quantizers": {"exp_avg": "B128/DE@4s+sr", "exp_avg_sq": "rank1/linear@4u+sr"},
    "seed": 4,
}


@pytest.fixture
def lightning() -> ModuleType:
    """Import Lightning at its first use; this takes seconds."""
    return pytest.importorskip("lightning.pytorch", reason="the extra lightning is not installed")


@pytest.fixture
def callback(lightning: ModuleType) -> Any:
    from qmaps.integrations.lightning import CaptureCallback

    return CaptureCallback


def module(lightning: ModuleType, *makers: Any, dtype: torch.dtype = torch.float32) -> Any:
    """A module with an optimizer of each kind, trained to reproduce a part of its input."""

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net(dtype)
            self.automatic_optimization = len(makers) == 1
            self.losses: list[float] = []

        def loss(self, x: torch.Tensor) -> torch.Tensor:
            return (self.net(x.to(dtype)) - x[:, :12].to(dtype)).float().square().mean()

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor | None:
            loss = self.loss(batch)
            self.losses.append(float(loss.detach()))
            if self.automatic_optimization:
                return loss
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
                optimizer.zero_grad()
            return None

        def configure_optimizers(self) -> Any:
            halves = [self.net[0], self.net[2]] if len(makers) > 1 else [self]
            optimizers = [make(h.parameters()) for make, h in zip(makers, halves, strict=True)]
            if len(optimizers) > 1:
                return optimizers
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizers[0], 8)
            return {"optimizer": optimizers[0], "lr_scheduler": {"scheduler": schedule,
                                                           "interval": "step"}}  # fmt: skip

    return Module()


def fit(
    lightning: ModuleType, folder: Path, subject: Any, steps: int, *callbacks: Any, **options: Any
) -> Any:
    """Train up to a step; `resume` names a checkpoint to begin with."""
    resume = options.pop("resume", None)
    saves = any(isinstance(callback, lightning.callbacks.ModelCheckpoint) for callback in callbacks)
    x = torch.randn(32, 24, generator=torch.Generator().manual_seed(1))
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_steps=steps, callbacks=list(callbacks), logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=saves,
        default_root_dir=folder, **options,
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(x, batch_size=8)
    trainer.fit(subject, loader, ckpt_path=resume, weights_only=True)
    return trainer


pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]  # of a loader without workers, and the like


def test_a_resumed_run_is_an_uninterrupted_one_with_its_capture(
    lightning: ModuleType, callback: Any, tmp_path: Path
) -> None:
    def make(params: Any) -> optim.AdamW:
        return optim.AdamW(params, **OPTIONS)

    def checkpoints() -> Any:
        return lightning.callbacks.ModelCheckpoint(
            tmp_path / "saved", "{step}", every_n_train_steps=4, save_top_k=-1
        )

    often = {"every": 2, "gradients": 2}
    monitor = importlib.import_module(callback.__module__).MonitorCallback
    callbacks = callback(tmp_path / "a", **often), monitor(tmp_path / "a.csv", every=2)
    uninterrupted = fit(lightning, tmp_path, module(lightning, make), 8, *callbacks)
    cut = module(lightning, make)
    fit(lightning, tmp_path / "b", cut, 6, callback(**often), monitor(every=2), checkpoints())
    again = module(lightning, make)
    saved = tmp_path / "saved" / "step=4.ckpt"
    callbacks = callback(**often), monitor(every=2)
    second = fit(lightning, tmp_path / "b", again, 8, *callbacks, resume=saved)
    assert second.global_step == 8
    assert len(again.losses) == 4  # an epoch; within one Lightning begins its data anew
    assert_same(second.optimizers[0], uninterrupted.optimizers[0])
    state = second.optimizers[0].state[again.net[0].weight]
    assert isinstance(state["exp_avg"], QuantizedTensor)

    measured = (tmp_path / "a.csv").read_text()
    assert measured.count("net.0.weight,exp_avg_sq,rank1/linear@4u+sr") == 4
    assert (tmp_path / "b" / "monitor.csv").read_text() == measured
    expected, resumed = capture.load(tmp_path / "a"), capture.load(tmp_path / "b" / "states")
    assert expected.steps == resumed.steps == [2, 4, 6, 8]
    assert expected.parameters() == [f"net.{name}" for name, _ in net().named_parameters()]
    for name in expected.parameters():
        for kind in expected.states(name):
            assert torch.equal(expected.tensor(name, kind), resumed.tensor(name, kind))
    actual = dict(capture.load(tmp_path / "a", step=2).gradients("net.0.weight"))
    assert list(actual) == [3, 4, 5, 6, 7, 8]
    assert all(bool(gradient.any()) for gradient in actual.values())


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_master_copies_clipping_and_accumulation(
    lightning: ModuleType, tmp_path: Path, precision: str
) -> None:
    dtype = torch.float32 if precision == "bf16-mixed" else torch.bfloat16

    def make(params: Any) -> optim.AdamW8bit:
        return optim.AdamW8bit(params, lr=1e-2, min_quantized_size=0, master_weights=True)

    subject = module(lightning, make, dtype=dtype)
    trainer = fit(
        lightning, tmp_path, subject, 10, precision=precision, gradient_clip_val=0.5,
        accumulate_grad_batches=2,
    )  # fmt: skip
    assert sum(subject.losses[-4:]) < sum(subject.losses[:4])
    for p in subject.parameters():
        state = trainer.optimizers[0].state[p]
        assert float(state["step"]) == 10
        assert p.dtype == dtype
        assert (MASTER in state) == (dtype == torch.bfloat16)
        if MASTER in state:
            assert torch.equal(p, state[MASTER].bfloat16())


def test_several_optimizers_have_a_folder_each(
    lightning: ModuleType, callback: Any, tmp_path: Path
) -> None:
    subject = module(
        lightning, lambda p: optim.Lion8bit(p, lr=1e-3), lambda p: torch.optim.SGD(p, momentum=0.9)
    )
    recorder = callback(tmp_path / "states", every=3)
    fit(lightning, tmp_path, subject, 12, recorder)
    results = [capture.load(tmp_path / "states" / str(number)) for number in (0, 1)]
    assert [states.steps for states in results] == [[3, 6], [3, 6]]
    assert results[0].parameters() == ["net.0.weight", "net.0.bias"]
    assert results[1].states("net.2.weight") == ["momentum_buffer"]
    # Without the callback nothing is recorded any more.
    fit(lightning, tmp_path, module(lightning, lambda p: optim.Lion8bit(p)), 3)
    assert capture.load(tmp_path / "states" / "0").steps == [3, 6]


def test_errors_of_the_end_leave_no_monitor_open(callback: Any) -> None:
    monitors = importlib.import_module(callback.__module__).MonitorCallback()
    training = KeyError("broken")
    for error in (None, training):
        optimizers = [make("AdamW8bit", net().parameters()) for _ in range(2)]
        opened = [capture.Monitor(optimizer, None) for optimizer in optimizers]
        for monitor in opened:
            monitor._ranks._error = OSError("held")
        monitors._watchers = [*opened]
        if error is None:
            with pytest.raises(OSError, match="held"):
                monitors.on_train_end(None, None)
        else:
            monitors.on_exception(None, None, error)
            assert error.__notes__ == ["Monitor: held"] * 2
        assert not any(monitor.optimizer._optimizer_step_post_hooks for monitor in opened)


def test_a_run_that_breaks_off_records_no_longer(
    lightning: ModuleType, callback: Any, tmp_path: Path
) -> None:
    class Breaks(lightning.Callback):
        def on_train_batch_start(self, trainer: Any, subject: Any, batch: Any, index: int) -> None:
            if index == 2:
                raise KeyError("broken")

    subject = module(lightning, lambda p: optim.AdamW8bit(p))
    with pytest.raises(KeyError, match="broken"):
        fit(lightning, tmp_path, subject, 6, callback(), Breaks())
    optimizer = subject.optimizers().optimizer
    subject.loss(torch.ones(2, 24)).backward()
    optimizer.step()
    assert capture.load(tmp_path / "states").steps == [1, 2]
