"""Model memory: predictions equal the bytes of live tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from qmaps import lpmm
from qmaps.errors import BadTypeError, BadValueError


def net() -> nn.Module:
    model = nn.Sequential(nn.Embedding(33, 70), nn.Linear(70, 50), nn.LayerNorm(50))
    model[2].bias.requires_grad_(False)
    return model


@pytest.mark.parametrize("params", ["B2048/linear0@12s+sr", "B100/linear0@10s", "rank1/linear0@8s"])
@pytest.mark.parametrize("grads", ["B2048/linear0@8s+sr", "B64x8/linear0@6s"])
@pytest.mark.parametrize("momentum", ["B2048/DE@8s+sr", "B128/DE@4s", "32bit"])
def test_the_prediction_equals_the_memory_of_a_trained_model(
    params: str, grads: str, momentum: str
) -> None:
    predicted = lpmm.predict(net(), params, grads, {"momentum_buffer": momentum})
    model = lpmm.convert(net(), params, grads)
    optimizer = lpmm.LPMMSGD(
        model.parameters(), state_quantizers={"momentum_buffer": None if momentum == "32bit"
                                              else momentum}
    )  # fmt: skip
    model(torch.tensor([[1, 2]])).sum().backward()
    optimizer.step()
    assert lpmm.measure(model, optimizer) == predicted


def test_the_papers_bits() -> None:
    """28 for 12/8/8, 96 in full precision, 72 with 8-bit momentum, and scales."""
    model = nn.Linear(2048, 512, bias=False)
    full = lpmm.predict(model, "32bit", None, {"momentum_buffer": "32bit"})
    eight = lpmm.predict(model, None, None, {"momentum_buffer": "B2048/DE@8s"})
    ours = lpmm.predict(model)
    assert full.bits_per_parameter == 96
    assert eight.bits_per_parameter == 72 + 32 / 2048
    assert ours.bits_per_parameter == 28 + 3 * 32 / 2048
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2048)).sum().backward()
    plain.step()
    assert lpmm.measure(model, plain) == full


def test_a_model_without_memory_will_do() -> None:
    with torch.device("meta"):
        model = nn.Linear(10**5, 10**5, bias=False)
    assert lpmm.predict(model).bits_per_parameter == pytest.approx(28 + 96 / 2048, rel=1e-6)


def test_small_states_can_stay_in_32_bits() -> None:
    model = nn.Linear(50, 2)
    predicted = lpmm.predict(model, states={"a": "B256/DE@8s"}, min_quantized_size=2)
    assert predicted.states == {"a": 104 + 8}
    assert lpmm.predict(model, states={"a": "B256/DE@8s"}).states == {"a": 104 + 6}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: lpmm.predict(3), BadTypeError,  # type: ignore[arg-type]
         "model must be a torch.nn.Module, got int"),
        (lambda: lpmm.predict(torch.nn.LazyLinear(2)), BadValueError,
         "parameter 'weight' has no shape yet; call the model once so that its lazy modules "
         "see their inputs"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message
