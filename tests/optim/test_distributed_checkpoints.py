"""Runs resumed through torch.distributed.checkpoint.

`get_optimizer_state_dict` makes states by a hidden first step, with lr=0 and zero gradients, and
``dcp.load`` reads the states of this step and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from qmaps import optim
from qmaps.errors import BadValueError
from qmaps.optim import PRESETS, AdamW, AdamW8bit, AdamWScheduleFree, Prodigy, QuantizedOptimizer

dcp = pytest.importorskip("torch.distributed.checkpoint")
distributed = pytest.importorskip("torch.distributed.checkpoint.state_dict")

Make = Callable[..., QuantizedOptimizer]
Prepare = Callable[[QuantizedOptimizer], Any]

CLASSES = sorted(
    name
    for name, cls in vars(optim).items()
    if isinstance(cls, type)
    and issubclass(cls, QuantizedOptimizer)
    and cls not in (QuantizedOptimizer, optim.FixedWidth)
)
OPTIONS: dict[str, tuple[Make, dict[str, Any]]] = {
    **{f"AdamW, {preset}": (AdamW, {"state_quantizers": preset}) for preset in PRESETS},
    "fitted": (AdamW, {"state_quantizers": "B64/quantile@4s + tensor/lloyd@3u"}),
    "spread rounding": (AdamW, {"state_quantizers": "B64/linear0@4s+qsr + B64/linear@4u+qsr"}),
    "low rank": (AdamW, {"state_quantizers": "lowrank2(B64/DE@4s)+B64/DE@4s + B64/DE-0@4u"}),
    "SGD with momentum": (optim.SGD8bit, {"momentum": 0.9}),
    "CAME": (optim.Adafactor, {"beta1": 0.9, "beta3": 0.99}),
    "RMSprop, centered": (optim.RMSprop8bit, {"momentum": 0.9, "centered": True}),
    "Prodigy, sliced": (Prodigy, {"slice_p": 7, "use_bias_correction": True, "weight_decay": 0.1}),
    "Prodigy, quantized p0": (Prodigy, {"state_quantizers": {"p0": "B64/DE@8s"}}),
    "skipping": (AdamW8bit, {"nonfinite": "skip"}),
}


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(12, 20, bias=False), nn.Tanh(), nn.Linear(20, 12, bias=False)
    return nn.Sequential(*layers).to(dtype)


def train(model: nn.Module, optimizer: Any, steps: range) -> None:
    for number in steps:
        x = torch.randn(8, 12, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        model(x.to(next(model.parameters()).dtype)).square().mean().backward()
        optimizer.step()


def resumed(
    folder: Path, model: nn.Module, optimizer: QuantizedOptimizer, make: Make
) -> tuple[nn.Module, QuantizedOptimizer]:
    """A new model and optimizer, with their states through dcp.save and dcp.load."""
    state = {"optimizer": distributed.get_optimizer_state_dict(model, optimizer)}
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    twin = net(next(model.parameters()).dtype)
    again = make(twin.parameters())
    state = {"optimizer": distributed.get_optimizer_state_dict(twin, again)}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    distributed.set_optimizer_state_dict(twin, again, state["optimizer"])
    twin.load_state_dict(model.state_dict())
    return twin, again


def goes_on(folder: Path, make: Make, dtype: torch.dtype = torch.float32) -> None:
    """Compare a run resumed in step 5 with an uninterrupted one."""
    model = net(dtype)
    optimizer = make(model.parameters())
    train(model, optimizer, range(5))
    twin, again = resumed(folder, model, optimizer, make)
    train(model, optimizer, range(5, 9))
    train(twin, again, range(5, 9))
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("reset_every", [None, 3])
@pytest.mark.parametrize("name", CLASSES)
def test_every_class_goes_on_bit_for_bit(
    name: str, reset_every: int | None, tmp_path: Path
) -> None:
    cls: Make = getattr(optim, name)
    if reset_every is not None and issubclass(getattr(optim, name), Prodigy):
        pytest.skip("Prodigy has no resets")
    goes_on(tmp_path, lambda params: cls(params, min_quantized_size=0, reset_every=reset_every))


@pytest.mark.parametrize("case", OPTIONS)
def test_options_and_formats_go_on_bit_for_bit(case: str, tmp_path: Path) -> None:
    cls, options = OPTIONS[case]
    goes_on(tmp_path, lambda params: cls(params, min_quantized_size=0, **options))


@pytest.mark.parametrize("form", [True, "bf16+8", "bf16+16"])
def test_master_weights_go_on_bit_for_bit(form: bool | str, tmp_path: Path) -> None:
    def make(params: Any) -> QuantizedOptimizer:
        return AdamW8bit(params, min_quantized_size=0, master_weights=form)

    goes_on(tmp_path, make, torch.bfloat16)


def test_averages_of_a_schedule_free_run_go_on(tmp_path: Path) -> None:
    model = net()
    optimizer = AdamWScheduleFree(model.parameters())
    train(model, optimizer, range(5))
    optimizer.eval()
    twin, again = resumed(tmp_path, model, optimizer, AdamWScheduleFree)
    for trained, of in ((model, optimizer), (twin, again)):
        of.train()
        train(trained, of, range(5, 9))
    assert torch.equal(model[0].weight, twin[0].weight)


def test_flattened_states_have_the_last_reset() -> None:
    """torch reads the names of flattened states from the optimizer, not from its state_dict."""
    model = net()
    optimizer = AdamW(model.parameters(), reset_every=3)
    distributed.get_optimizer_state_dict(model, optimizer)
    assert all(int(state["reset_step"]) == 0 for state in optimizer.state.values())


def test_a_checkpoint_without_its_last_reset_is_refused(tmp_path: Path) -> None:
    """The resumed optimizer has another `reset_every`, so its hidden step makes no counter."""
    model = net()
    optimizer = AdamW(model.parameters(), reset_every=3)
    train(model, optimizer, range(5))
    with pytest.raises(BadValueError) as caught:
        resumed(tmp_path, model, optimizer, AdamW)
    assert str(caught.value) == (
        "state_dict has reset_every=3 and step=5, but no reset_step for parameter 0 of group 0; "
        "with torch.distributed.checkpoint, make the optimizer with the reset_every of the "
        "checkpoint before dcp.load"
    )


def test_states_from_before_the_counter_are_read() -> None:
    """Versions up to 0.3 stored no `reset_step` before the first reset, and other rules never."""
    model = net()
    optimizer = AdamW(model.parameters(), reset_every=6)
    train(model, optimizer, range(5))
    saved = optimizer.state_dict()
    for state in saved["state"].values():
        del state["reset_step"]
    twin = net()
    twin.load_state_dict(model.state_dict())
    again = AdamW(twin.parameters())
    again.load_state_dict(saved)
    for trained, of in ((model, optimizer), (twin, again)):
        train(trained, of, range(5, 9))
    assert torch.equal(model[0].weight, twin[0].weight)
    long = torch.optim.AdamW(model.parameters())
    train(model, long, range(9))
    AdamW(model.parameters(), reset_every=6).load_state_dict(long.state_dict())
