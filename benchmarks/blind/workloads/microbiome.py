"""MGM, a GPT-2 trained on microbial communities, on communities of a few habitats."""

from __future__ import annotations

import functools
import json
import pickletools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from benchmarks.blind.workloads.packages import digest, package_file
from benchmarks.blind.workloads.validation import means
from qmaps.capture.parameters import integer
from qmaps.errors import BadValueError
from qmaps.lab.workloads.base import Batch, Workload

PACKAGE = "mgm"
WEIGHTS = "resources/general_model/pytorch_model.bin"
SHAPE = "resources/general_model/config.json"
TOKENS = "resources/MicroTokenizer.pkl"
ABUNDANCES = "resources/phylogeny.csv"
HABITATS, SPREAD = 12, 1.5
"""Number of habitats, and standard deviation of log abundances among them."""
VALIDATION_SEED = 2**32


@functools.lru_cache(maxsize=1)
def abundances() -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Log of the mean abundance of each genus, by habitat, and the genera's tokens.

    The tokenizer's file is a pickle; only its strings are read, nothing of it is run.

    Returns:
        Float64 of shape (habitats, genera), and int64 of shape (genera,).
    """
    strings = [
        text
        for operation, text, _ in pickletools.genops(package_file(PACKAGE, TOKENS).read_bytes())
        if "BINUNICODE" in operation.name
    ]
    first = strings.index("toks") + 1
    words = list(dict.fromkeys(strings[first:]))
    token = {word: number for number, word in enumerate(words)}
    table = pd.read_csv(package_file(PACKAGE, ABUNDANCES), index_col=0)
    table = table[[genus in token for genus in table.index]]
    shift = np.random.default_rng(0).normal(scale=SPREAD, size=(HABITATS, len(table)))
    return np.log(table["mean"].to_numpy()) + shift, np.array([token[g] for g in table.index])


def sentences(count: int, length: int, random: np.random.Generator) -> Tensor:
    """Communities as the model reads them: the start token, then genera, the most abundant first.

    Args:
        count: number of communities.
        length: number of tokens of each, at least 2.
        random: draws habitats and abundances.

    Returns:
        Tokens, int64 of shape (count, length).
    """
    means, tokens = abundances()
    values = means[random.integers(HABITATS, size=count)]
    values = values + random.gumbel(size=values.shape)
    order = np.argsort(-values, axis=1)[:, : length - 1]
    start = np.full((count, 1), 2)
    return torch.tensor(np.concatenate([start, tokens[order]], axis=1))


@functools.lru_cache(maxsize=1)
def _validation(count: int, length: int) -> Tensor:
    return sentences(count, length, np.random.default_rng(VALIDATION_SEED))


@dataclass(frozen=True)
class Microbiome(Workload):
    """A causal GPT-2 of 8.9 million parameters, trained on communities of 12 habitats.

    Its weights are the published ones for every seed; the seed decides the communities. Nothing is
    dropped out.

    Attributes:
        batch_size: communities per step.
        length: tokens of a community.
        validation_sentences: number of communities that `validate` averages over.

    Source: Zhang et al. (2024), "MGM as a large-scale pretrained foundation model for microbiome
    analyses"; weights of the package microformer-mgm (MIT).
    """

    name: ClassVar[str] = "microbiome"
    unit: ClassVar[str] = "nats per token"

    steps: int = 120
    lr: float = 1e-3
    warmup_steps: int = 10
    batch_size: int = 2
    length: int = 32
    validation_sentences: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("batch_size", self.batch_size, 1)
        integer("length", self.length, 2)
        integer("validation_sentences", self.validation_sentences, 1)

    def build(self) -> nn.Module:
        """The model with the package's weights."""
        try:
            from transformers import GPT2Config, GPT2LMHeadModel
        except ImportError:
            raise BadValueError(
                "workload 'microbiome' needs transformers; install it with pip install transformers"
            ) from None
        options = json.loads(package_file(PACKAGE, SHAPE).read_text(encoding="utf-8"))
        undropped = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
        model: nn.Module = GPT2LMHeadModel(GPT2Config(**options | undropped | {"use_cache": False}))
        weights = torch.load(package_file(PACKAGE, WEIGHTS), weights_only=True, map_location="cpu")
        model.load_state_dict(weights, strict=False)
        return model

    def batch(self, step: int, seed: int) -> Batch:
        """Communities, without their last and without their first token."""
        tokens = sentences(self.batch_size, self.length, np.random.default_rng([seed, step]))
        return tokens[:, :-1], tokens[:, 1:]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy per token, in nats."""
        return F.cross_entropy(model(batch[0]).logits.flatten(0, 1), batch[1].flatten())

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """``loss`` and its parts in nats per token."""
        losses = []
        for part in _validation(self.validation_sentences, self.length).split(16):
            logits = model(part[:, :-1]).logits.transpose(1, 2)
            losses.append(F.cross_entropy(logits, part[:, 1:], reduction="none").mean(dim=1))
        return means(torch.cat(losses))

    def data_digest(self) -> str:
        """Hash of the weights, the tokens and the abundances."""
        return digest(*(package_file(PACKAGE, file) for file in (WEIGHTS, TOKENS, ABUNDANCES)))
