from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qmaps.errors import BadValueError
from qmaps.lab import workloads
from qmaps.lab.workloads import corpus
from qmaps.lab.workloads.gpt import GPTShape
from qmaps.optim import AdamW4bit

pytestmark = pytest.mark.slow

TINY = workloads.get("stdlib-lm-tiny")


class Uniform(nn.Module):
    """Finds all bytes equally likely."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*tokens.shape, 256)


def test_batches_are_pieces_of_the_training_files() -> None:
    inputs, targets = TINY.batch(1, 0)
    assert inputs.shape == targets.shape == (8, 64)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    text = corpus.load().train.tobytes()
    for sequence, last in zip(inputs.tolist(), targets[:, -1].tolist(), strict=True):
        assert bytes([*sequence, last]) in text


def test_validation_looks_at_held_out_files_only(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = []

    class Looking(Uniform):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            batches.append(tokens)
            return super().forward(tokens)

    TINY.validate(Looking())
    assert len(batches) == TINY.validation_batches
    text = corpus.load().validation.tobytes()
    assert all(bytes(sequence) in text for tokens in batches for sequence in tokens.tolist())
    assert not torch.equal(batches[0], batches[1])


def test_the_loss_is_cross_entropy_per_byte() -> None:
    work = dataclasses.replace(TINY, validation_batches=2)
    metrics = work.validate(Uniform())
    assert metrics == pytest.approx({"loss": math.log(256), "bits_per_byte": 8.0})
    net, (inputs, targets) = TINY.model(0), TINY.batch(1, 0)
    chosen = F.log_softmax(net(inputs), -1).gather(-1, targets[..., None])
    torch.testing.assert_close(TINY.loss(net, (inputs, targets)), -chosen.mean())


def test_tiny_has_tall_and_wide_matrices_that_are_quantized() -> None:
    shapes = [p.shape for p in TINY.model(0).parameters() if p.numel() > 4096]
    assert {tuple(shape) for shape in shapes} >= {(256, 64), (64, 256), (192, 64)}


def test_bad_options() -> None:
    with pytest.raises(BadValueError) as caught:
        dataclasses.replace(TINY, validation_batches=0)
    assert str(caught.value) == "validation_batches=0 must be an int of at least 1"
    with pytest.raises(BadValueError) as caught:
        dataclasses.replace(TINY, shape=GPTShape(vocabulary=128))
    assert str(caught.value) == "vocabulary=128 must be at least 256, one a byte"


def test_the_stable_embedding_is_an_option() -> None:
    work = workloads.get("stdlib-lm-tiny", stable_embedding=True)
    assert work == dataclasses.replace(TINY, stable_embedding=True)
    assert work.settings() == {**TINY.settings(), "stable_embedding": True}
    memory = AdamW4bit(work.model(0).named_parameters(), min_quantized_size=0).memory()
    in_32_bits = {row.parameter for row in memory if row.quantizer is None}
    assert in_32_bits == {"tokens.weight", "tokens.norm.weight", "tokens.norm.bias"}
    with pytest.raises(BadValueError) as caught:
        workloads.get("stdlib-lm-tiny", stable_embedding=1)
    assert str(caught.value) == "stable_embedding=1 must be True or False"
