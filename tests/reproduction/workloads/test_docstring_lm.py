from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from qmaps.lab.workloads import corpus
from qmaps.lab.workloads.stdlib_lm import VALIDATION_SEED, StdlibLMTiny
from reproduction.workloads import docstring_lm, docstrings, get
from reproduction.workloads.docstring_lm import DocstringLM

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(docstring_lm, "PRETRAINING", 20)
    docstring_lm.pretrained.cache_clear()
    yield
    docstring_lm.pretrained.cache_clear()


def test_it_begins_with_weights_that_were_trained_on_source_code() -> None:
    work = get("docstring-lm")
    code = StdlibLMTiny()
    untrained, begun = code.model(0), work.model(5)
    assert code.validate(begun)["loss"] < code.validate(untrained)["loss"] - 0.5
    again = docstring_lm.pretrained.__wrapped__(work.shape, False, 0)  # as in another process
    assert all(torch.equal(again[name], value) for name, value in begun.state_dict().items())
    begun.state_dict()["norm.weight"].zero_()  # a model's weights are its own
    assert work.model(5).state_dict()["norm.weight"].any()


def test_the_seed_decides_the_batches_alone() -> None:
    work = get("docstring-lm")
    before = torch.get_rng_state()
    third, fourth = (list(work.model(seed).parameters()) for seed in (3, 4))
    assert all(torch.equal(a, b) for a, b in zip(third, fourth, strict=True))
    assert sum(p.numel() > 4096 for p in third) >= 2
    wanted = work.batch(2, 0)
    work.batch(1, 0)  # the order of calls does not matter
    assert all(map(torch.equal, work.batch(2, 0), wanted))
    for step, seed in ((1, 0), (2, 1), (0, 2)):
        assert not torch.equal(work.batch(step, seed)[0], wanted[0])
    assert torch.equal(torch.get_rng_state(), before)


def test_batches_and_validation_are_prose() -> None:
    work = DocstringLM(validation_batches=1)
    train, held_out = (bytes(part).decode() for part in docstring_lm.prose())
    inputs, targets = work.batch(1, 0)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert bytes(inputs[0].tolist()) in bytes(docstring_lm.prose()[0])
    assert train.startswith(docstrings.load().train[0][1])
    assert len(held_out) < len(train) / 5
    model = work.model(0)
    by_hand = work.loss(
        model, work._windows(docstring_lm.prose()[1], np.random.default_rng([VALIDATION_SEED, 0]))
    )
    assert work.validate(model)["loss"] == pytest.approx(by_hand.item())
    assert work.validate(model) == work.validate(model)
    assert work.data_digest() != corpus.load().digest


def test_a_stable_embedding_is_pretrained_too() -> None:
    model = get("docstring-lm", stable_embedding=True).model(0)
    assert "tokens.norm.weight" in model.state_dict()
