"""What holds for every optimizer: `qmaps.testing.check_optimizer`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qmaps import optim
from qmaps.optim import SGD, QuantizedOptimizer
from qmaps.testing import check_optimizer

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
    """Leaves its state as it was, on the reference alone."""

    def update(
        self, param: Tensor, grad: Tensor, states: dict[str, Tensor], scalars: dict[str, float]
    ) -> None:
        super().update(param, grad, {k: v.clone() for k, v in states.items()}, scalars)


def test_a_wrong_optimizer_is_told() -> None:
    with pytest.raises(AssertionError) as caught:
        check_optimizer(Forgetful, lr=0.1, momentum=0.9)
    assert caught.value.__notes__ == [
        "about: the_same_steps_give_the_same_bits of Forgetful, 32 bits"
    ]
    with pytest.raises(TypeError, match="cls must be a subclass of QuantizedOptimizer"):
        check_optimizer(torch.optim.SGD)
