"""Gradients of embeddings of words, at a model's first step."""

from __future__ import annotations

import functools
import re
from collections import Counter

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from qmaps.lab.workloads import corpus
from qmaps.lab.workloads.base import seeded
from qmaps.lab.workloads.gpt import GPT, GPTShape

PLAIN, SCALED, TIED = "N(0, 0.02)", "N(0, 1/√k), times √k", "N(0, 1/√k), times √k, tied"
"""Initializations of the embedding; the second is that of appendix B. `TIED`: the output layer has
the same weights."""
WIDTHS = (64, 256)
SEQUENCES, LENGTH = 8, 64


@functools.lru_cache(maxsize=1)
def numbered() -> tuple[Tensor, int]:
    """Words and signs of the corpus, the most frequent one 0; and how many different ones.

    Their frequencies fall as those of a language do: by Zipf's law.
    """
    text = corpus.load().train.tobytes().decode("utf-8", "ignore")
    words = re.findall(r"\w+|[^\w\s]", text)
    number = {word: place for place, (word, _) in enumerate(Counter(words).most_common())}
    return torch.tensor([number[word] for word in words]), len(number)


def gradients(seeds: int) -> pd.DataFrame:
    """Largest gradients of a small `GPT` of words in its first step.

    Returns:
        `initialization`, `width`, `words`, `seed`; `embedding`; `weights` and `others`, of the
        matrices of all other layers and of all other parameters. An output layer with weights of
        its own counts among neither: its gradients are those of words, too.
    """
    return pd.DataFrame(
        first_step(initialization, width, seed)
        for initialization in (PLAIN, SCALED, TIED)
        for width in WIDTHS
        for seed in range(seeds)
    )


def first_step(initialization: str, width: int, seed: int) -> dict[str, object]:
    """A row of `gradients`."""
    words, count = numbered()
    with seeded(seed):
        shape = GPTShape(vocabulary=count, context=LENGTH, width=width, layers=2, heads=4)
        model = GPT(shape)
        if initialization != PLAIN:
            nn.init.normal_(model.tokens.weight, std=width**-0.5)
            model.tokens.register_forward_hook(lambda _module, _given, output: output * width**0.5)
        if initialization == TIED:
            model.head.weight = model.tokens.weight
    random = np.random.default_rng(seed)
    starts = random.integers(0, len(words) - LENGTH, size=SEQUENCES).tolist()
    windows = torch.stack([words[start : start + LENGTH + 1] for start in starts])
    logits = model(windows[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    largest = {
        name: float(parameter.grad.abs().max())
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    embedding = largest.pop("tokens.weight")
    largest.pop("head.weight", None)
    weights = [
        value
        for name, value in largest.items()
        if name.startswith("blocks.") and name.endswith(".weight") and "norm" not in name
    ]
    return {
        "initialization": initialization,
        "width": width,
        "words": count,
        "seed": seed,
        "embedding": embedding,
        "weights": max(weights),
        "others": max(largest.values()),
    }
