from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
import torch

from qmaps import workloads
from qmaps.workloads import corpus
from qmaps.workloads.gpt import GPT, GPTShape


@pytest.mark.parametrize("name", workloads.names())
def test_everything_is_a_function_of_seed_and_step(name: str) -> None:
    work = workloads.get(name)
    before = torch.get_rng_state()
    one, same, other = work.model(3), work.model(3), work.model(4)
    assert torch.equal(torch.get_rng_state(), before)
    pairs = list(zip(one.parameters(), same.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)
    batches = [work.batch(step, seed)[0] for step, seed in ((1, 0), (1, 0), (2, 0), (1, 1))]
    assert torch.equal(batches[0], batches[1])
    assert not torch.equal(batches[0], batches[2])
    assert not torch.equal(batches[0], batches[3])
    if name != "stdlib-lm":
        assert work.validate(one) == work.validate(same)
    # Some states are large enough to be quantized.
    assert sum(p.numel() > 4096 for p in one.parameters()) >= 2


def test_sizes() -> None:
    sizes = {
        name: sum(p.numel() for p in workloads.get(name).model(0).parameters())
        for name in ("stdlib-lm", "stdlib-lm-tiny")
    }
    assert 1.8e6 < sizes["stdlib-lm"] < 2.2e6
    assert sizes["stdlib-lm-tiny"] < 2e5


def test_the_corpus_is_split_by_file() -> None:
    names = list(corpus.files(Path(sysconfig.get_path("stdlib"))))
    held_out = [name for name in names if corpus.is_validation(name)]
    assert 0.05 < len(held_out) / len(names) < 0.16
    assert not [name for name in names if "site-packages" in name or "/test/" in name]
    train, validation = corpus.load()
    root = Path(sysconfig.get_path("stdlib"))
    text = max(((root / name).read_bytes() for name in held_out), key=len)
    assert text in validation.tobytes()
    assert text not in train.tobytes()


def test_no_source_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    corpus.load.cache_clear()
    try:
        with pytest.raises(ValueError) as caught:
            corpus.load()
        assert str(caught.value) == (
            f"the standard library in {str(tmp_path)!r} holds 0 bytes of source; stdlib-lm needs a "
            "Python that comes with its library's .py files"
        )
    finally:
        corpus.load.cache_clear()


def test_attention_is_causal() -> None:
    net = GPT(GPTShape(context=16, width=32, layers=2, heads=4))
    tokens = torch.randint(0, 256, (2, 16))
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 256
    before, after = net(tokens), net(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_the_learning_rate_warms_up_and_decays_to_a_tenth() -> None:
    work = workloads.get("stdlib-lm")
    rates = [work.learning_rate(step, 250) for step in range(1, 251)]
    assert rates[0] == pytest.approx(work.lr / work.warmup_steps)
    assert max(rates) == pytest.approx(work.lr)
    assert rates.index(max(rates)) + 1 == work.warmup_steps
    assert rates[-1] == pytest.approx(work.lr / 10)


def test_unknown_workload() -> None:
    with pytest.raises(ValueError) as caught:
        workloads.get("stdlib")
    assert str(caught.value) == (
        "workload='stdlib' is unknown; allowed are digits, stdlib-lm, stdlib-lm-tiny; "
        "nearest match: stdlib-lm"
    )
