"""Memory of published models, from shapes."""

from __future__ import annotations

import pytest
import torch

from qmaps.optim import AdamW
from reproduction.memory import FACTORED, architectures, max_model, quantizers, state_bytes

pytestmark = pytest.mark.slow

# Counted by their authors: millions of parameters.
PUBLISHED = {
    "RoBERTa-base": 125,
    "RoBERTa-large": 355,
    "GPT-2 Medium": 355,
    "GPT-2 Large": 774,
    "GPT-2 XL": 1558,
    "OPT-1.3B": 1316,
    "OPT-6.7B": 6658,
    "LLaMA-7B": 6738,
    "mT5-small": 300,
    "mT5-base": 582,
    "mT5-large": 1230,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_add_up_to_the_published_size(name: str) -> None:
    assert architectures()[name].parameters / 1e6 == pytest.approx(PUBLISHED[name], rel=0.01)


@pytest.mark.parametrize("preset", ["32bit", "paper-8bit", "paper-4bit"])
def test_states_are_those_of_an_optimizer(preset: str) -> None:
    shapes = [(100, 70), (64, 64), (65, 64), (5000,), (7,)]
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    optimizer = AdamW(parameters, state_quantizers=preset)
    specs = quantizers(preset)
    expected = sum(state_bytes(shape, spec) for shape in shapes for spec in specs.values())
    assert optimizer.memory().nbytes == expected


def test_a_factored_state_is_a_row_and_a_column() -> None:
    assert state_bytes((100, 70), FACTORED) == 4 * 170
    assert state_bytes((70,), FACTORED) == 4 * 70


def test_the_largest_model_grows_with_memory_and_with_fewer_bits() -> None:
    full, low = quantizers("32bit"), quantizers("paper-8bit")
    assert max_model("GPT-2", 1, full, 512) == "none"
    assert max_model("GPT-2", 16, full, 512) == "GPT-2 Large"
    assert max_model("GPT-2", 24, low, 512) == "GPT-2 XL"
    assert max_model("GPT-2", 1000, full, 512) == "GPT-2 XL"
