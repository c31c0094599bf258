"""Appendix B: causes of large gradients in embeddings."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from reproduction.claim import Verdict
from reproduction.eight_bit import _vocabulary, appendix_b
from reproduction.exhibit import explain

pytestmark = pytest.mark.slow

STATES = pd.DataFrame(
    {"states": ["grid", "pretrained"], "words": [256, 30522], "embedding": [1.1, 0.3],
     "others": [1.0, 1.0]}
)  # fmt: skip


def steps(plain: float, scaled: float, tied: float) -> pd.DataFrame:
    ratios = {_vocabulary.PLAIN: plain, _vocabulary.SCALED: scaled, _vocabulary.TIED: tied}
    return pd.DataFrame(
        {"initialization": name, "width": width, "words": 48_000, "seed": seed,
         "embedding": ratio * 0.5 * (1 + seed / 10) * width / 256, "weights": 0.5, "others": 9.0}
        for name, ratio in ratios.items() for width in (64, 256) for seed in (0, 1)
    )  # fmt: skip


@pytest.mark.parametrize("tied", [9.0, 40.0, 200.0])
def test_the_best_of_several_cases_is_no_comparison(tied: float) -> None:
    frames = {"gradients": STATES, "first-step": steps(1.2, 12.0, tied)}
    finding = explain(appendix_b.find(frames))
    assert f"{1.05 * tied:.3g} times where the output layer" in finding.differences[0].why
    assert finding.numbers is not None
    assert finding.numbers["ours"].tolist() == pytest.approx([1.05 * 12])  # the paper's own
    assert finding.verdict is Verdict.CONTRADICTS


def test_states_alone_show_no_cause() -> None:
    finding = appendix_b.find({"gradients": STATES})
    (difference,) = finding.differences
    assert difference.elsewhere is False
    assert "1.1 of 256 words, 0.3 of 30,522 words" in difference.why
    assert finding.numbers is not None
    assert finding.numbers["ours"].tolist() == [0.3]


def test_words_are_numbered_by_their_frequency() -> None:
    words, count = _vocabulary.numbered()
    times = torch.bincount(words)
    assert len(times) == count > 10_000
    assert bool((times[1:] <= times[:-1]).all())
    # Zipf's law: frequency times place stays of one size over three decades of places.
    weighted = [float(times[place - 1]) * place for place in (10, 100, 1000, 10_000)]
    assert max(weighted) < 10 * min(weighted)


def test_a_first_step_has_the_gradients_of_the_model_it_names() -> None:
    plain, scaled, tied = (
        _vocabulary.first_step(name, 16, 0)
        for name in (_vocabulary.PLAIN, _vocabulary.SCALED, _vocabulary.TIED)
    )
    assert plain == _vocabulary.first_step(_vocabulary.PLAIN, 16, 0)
    assert plain["weights"] != scaled["weights"] != tied["weights"]
    assert float(str(tied["embedding"])) != float(str(scaled["embedding"]))
    for row in (plain, scaled, tied):
        assert 0 < float(str(row["weights"])) <= float(str(row["others"]))
