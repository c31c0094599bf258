"""Checks for every optimizer: `qmaps.testing.check_optimizer`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qmaps import optim
from qmaps.optim import PRESETS, SGD, Adam, QuantizedOptimizer
from qmaps.testing import check_optimizer
from qmaps.testing.optimizers import Make, mirrored_gradients_train_mirrored

NEEDS = {"SGD": {"momentum": 0.9}, "LARS": {"momentum": 0.9}}
CLASSES = {
    name: cls
    for name in optim.__all__
    if isinstance(cls := getattr(optim, name), type)
    and issubclass(cls, QuantizedOptimizer)
    and "bit" not in name
    and cls is not QuantizedOptimizer
}


@pytest.mark.parametrize("name", CLASSES)
def test_optimizers(name: str) -> None:
    check_optimizer(CLASSES[name], lr=1e-2, **NEEDS.get(name, {}))


class Forgetful(SGD):
    """Keeps its old state, on the reference alone."""

    def update(
        self, param: Tensor, grad: Tensor, states: dict[str, Tensor], scalars: dict[str, float]
    ) -> None:
        super().update(param, grad, {k: v.clone() for k, v in states.items()}, scalars)


def test_a_wrong_optimizer_fails() -> None:
    with pytest.raises(AssertionError) as caught:
        check_optimizer(Forgetful, lr=0.1, momentum=0.9)
    assert caught.value.__notes__ == [
        "about: the_same_steps_give_the_same_bits of Forgetful, 32 bits"
    ]
    with pytest.raises(TypeError, match="cls must be a subclass of QuantizedOptimizer"):
        check_optimizer(torch.optim.SGD)


@pytest.mark.parametrize("preset", [p for p in PRESETS if not p.startswith("paper-")])
@pytest.mark.parametrize("name", CLASSES)
def test_mirrored_gradients_train_mirrored(name: str, preset: str) -> None:
    options = {"lr": 1e-2, "min_quantized_size": 0, **NEEDS.get(name, {})}
    mirrored_gradients_train_mirrored(Make(CLASSES[name], state_quantizers=preset, **options))


@pytest.mark.parametrize("first", ["B256/DE@8s", "B128/DE@4s+sr"])
def test_a_map_without_minus_one_fails(first: str) -> None:
    make = Make(Adam, state_quantizers=f"{first} + B256/DE-0@8u", min_quantized_size=0)
    with pytest.raises(AssertionError, match=r"^0\.\d+ times as far$"):
        mirrored_gradients_train_mirrored(make)


@pytest.mark.parametrize("preset", ["32bit", "8bit"])
def test_rounding_to_nearest_mirrors_every_bit(preset: str) -> None:
    before = torch.randn(64, 128, generator=torch.Generator().manual_seed(0))

    def trained(sign: float) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        param = torch.nn.Parameter(sign * before)
        optimizer = Adam([param], lr=1e-2, state_quantizers=preset)
        for _ in range(8):
            param.grad = sign * torch.randn(64, 128, generator=generator)
            optimizer.step()
        return param.detach()

    assert torch.equal(trained(1.0), -trained(-1.0))
