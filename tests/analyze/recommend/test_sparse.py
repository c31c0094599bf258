"""Embeddings with gradients in few rows."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import qmaps
from qmaps.analyze.recommend.candidates import CANDIDATES
from qmaps.optim.presets import pair_of

ROUNDED = "B256/DE-sym@8s+qsr + B256/geometric@8u+qsr"
NEAREST = "B256/DE-sym@8s + B256/DE-0@8u"
"""The same maps rounded to nearest."""
ROWS, WIDTH = 1000, 16


def test_stochastic_rounding_mends_a_sparse_embedding_in_8_bits(tmp_path: Path) -> None:
    assert ROUNDED in {pair_of(candidate).spec for candidate in CANDIDATES}
    embedding, goal = nn.Embedding(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
    optimizer = torch.optim.AdamW(embedding.parameters(), lr=2e-3)
    frequencies = 1 / (torch.arange(ROWS) + 1.0)
    with qmaps.capture.StateRecorder(
        optimizer, tmp_path, names=embedding, steps=[100], gradients=40
    ):
        for _ in range(140):
            tokens = torch.multinomial(frequencies, 4, replacement=True)
            optimizer.zero_grad()
            (embedding(tokens) - goal[tokens]).square().mean().backward()
            optimizer.step()
    recommendation = qmaps.recommend(
        tmp_path, bits=8.3, candidates=[NEAREST, ROUNDED], steps=40, share=1.0
    )
    costs = recommendation.tensors.set_index("quantizer")["step_cost"]
    assert costs[NEAREST] > 10 * costs[ROUNDED] > 0
