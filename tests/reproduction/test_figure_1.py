"""Outlier patterns of first moments, on made-up states."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from qmaps.capture import CapturedStates
from reproduction.context import Context
from reproduction.four_bit import figure_1
from reproduction.four_bit._matrices import in_blocks

pytestmark = pytest.mark.slow


def test_matrices_of_tokens_are_left_out_where_there_are_blocks() -> None:
    moment = torch.ones(80, 64)
    names = ("tokens", "blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down", "head")
    assert list(in_blocks(dict.fromkeys(names, moment))) == list(names[1:-1])


def states(*, with_layers: bool) -> CapturedStates:
    """An embedding with few used words, and layers with an outlier row and column."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randn(256, 32, generator=generator)
    words[20:] = 0
    moments = {"words.weight": words}
    if with_layers:
        row, column = torch.randn(2, 96, 64, generator=generator)
        row[3] *= 100
        column[:, 5] *= 100
        moments |= {"up.weight": row, "down.weight": column}
    tensors = {name: {"exp_avg": m, "exp_avg_sq": m.square()} for name, m in moments.items()}
    return CapturedStates.from_tensors(tensors, step=1, optimizer="AdamW")


def test_rows_of_words_that_never_came_are_no_pattern(tmp_path: Path) -> None:
    frames = figure_1.build(Context(tmp_path, user_states=[states(with_layers=True)]))
    assert frames["lines"]["tensor"].tolist() == ["up", "down"]
    assert frames["patterns"]["tensor"].unique().tolist() == ["rows: up", "columns: down"]
    assert frames["errors"]["tensor"].unique().tolist() == ["words", "up", "down"]
    # Where nothing else is there, it is shown all the same.
    alone = figure_1.build(Context(tmp_path, user_states=[states(with_layers=False)]))
    assert alone["lines"]["tensor"].tolist() == ["words"]
