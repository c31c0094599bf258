from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from qmaps.errors import BadValueError
from qmaps.lab import workloads
from qmaps.lab.workloads import digits

pytestmark = pytest.mark.slow

WORK = workloads.get("digits")


def test_the_images() -> None:
    pixels, labels = digits.images()
    assert pixels.shape == (1797, 1, 8, 8)
    assert (float(pixels.min()), float(pixels.max())) == (0, 1)
    assert sorted(set(labels.tolist())) == list(range(10))


def test_training_never_sees_a_held_out_image() -> None:
    pixels, _ = digits.images()
    images = {tuple(image.flatten().tolist()) for s in range(100) for image in WORK.batch(s, 0)[0]}
    held_out = {tuple(image.flatten().tolist()) for image in pixels[: digits.VALIDATION]}
    assert len(images) > 1300
    assert not images & held_out


def test_an_oracle_is_right_everywhere() -> None:
    pixels, labels = digits.images()

    class Oracle(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            assert torch.equal(images, pixels[: digits.VALIDATION])
            return 100 * nn.functional.one_hot(labels[: digits.VALIDATION], 10).float()

    assert WORK.validate(Oracle()) == pytest.approx({"loss": 0, "accuracy": 1}, abs=1e-6)


def test_it_learns() -> None:
    net = WORK.model(0)
    optimizer = torch.optim.AdamW(net.parameters(), lr=WORK.lr)
    before = WORK.validate(net)
    for step in range(1, 61):
        optimizer.zero_grad()
        WORK.loss(net, WORK.batch(step, 0)).backward()
        optimizer.step()
    after = WORK.validate(net)
    assert before["accuracy"] < 0.3
    assert after["accuracy"] > 0.8
    assert after["loss"] < before["loss"] / 2


def test_size() -> None:
    sizes = [p.numel() for p in WORK.model(0).parameters()]
    assert sum(sizes) == 53_002
    assert [size for size in sizes if size > 4096] == [18_432, 32_768]


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    digits.images.cache_clear()
    with pytest.raises(BadValueError) as caught:
        WORK.batch(1, 0)
    assert str(caught.value) == (
        "workload 'digits' needs scikit-learn; install it with pip install \"torch-qmaps[lab]\""
    )
