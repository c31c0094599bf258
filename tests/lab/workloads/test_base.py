from __future__ import annotations

import dataclasses

import pytest
import torch

from qmaps.errors import BadValueError
from qmaps.lab import workloads
from qmaps.lab.workloads import REGISTRY
from qmaps.lab.workloads.base import seeded

NAMES = workloads.names()


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_a_function_of_the_seed(name: str) -> None:
    work = workloads.get(name)
    third, same, fourth = (list(work.model(seed).parameters()) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(third, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(third, fourth, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_batches_are_a_function_of_seed_and_step(name: str) -> None:
    work = workloads.get(name)
    wanted = work.batch(2, 0)
    work.batch(1, 0)  # the order of calls does not matter
    assert all(map(torch.equal, work.batch(2, 0), wanted))
    for step, seed in ((1, 0), (2, 1), (0, 2)):
        assert not torch.equal(work.batch(step, seed)[0], wanted[0])


@pytest.mark.parametrize("name", NAMES)
def test_the_callers_generator_is_left_alone(name: str) -> None:
    work = workloads.get(name)
    before = torch.get_rng_state()
    work.loss(work.model(3), work.batch(1, 0))
    assert torch.equal(torch.get_rng_state(), before)


def test_seeding_ends_with_the_block_even_after_an_error() -> None:
    before = torch.get_rng_state()

    def fail() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError), seeded(7):
        fail()
    assert torch.equal(torch.get_rng_state(), before)
    with seeded(7):
        drawn = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(torch.rand(3), drawn)


def test_models_leave_cudas_generators_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    workloads.get("stdlib-lm-tiny").model(0)
    assert not seeds


@pytest.mark.parametrize("name", NAMES)
def test_several_states_are_large_enough_to_be_quantized(name: str) -> None:
    large = [p.shape for p in workloads.get(name).model(0).parameters() if p.numel() > 4096]
    assert len(large) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_validation_is_the_same_each_time_and_leaves_no_gradient(name: str) -> None:
    work = workloads.get(name)
    if name == "stdlib-lm":
        work = dataclasses.replace(work, batch_size=2, validation_batches=1)
    net = work.model(0)
    metrics = work.validate(net)
    assert work.validate(net) == metrics
    assert metrics["loss"] > 0
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("steps", [1, 2, 3, 20, 39, 40, 250])
def test_the_rate_rises_to_the_peak_and_falls_to_a_tenth(steps: int) -> None:
    work = workloads.get("stdlib-lm")
    rates = [work.learning_rate(step, steps) for step in range(1, steps + 1)]
    warmup = min(work.warmup_steps, steps // 2)
    assert rates[-1] == pytest.approx(work.lr / 10)
    assert rates[:warmup] == pytest.approx([work.lr * (i + 1) / warmup for i in range(warmup)])
    assert sorted(rates[max(warmup - 1, 0) :], reverse=True) == rates[max(warmup - 1, 0) :]
    if warmup:
        assert max(rates) == rates[warmup - 1] == pytest.approx(work.lr)


def test_the_cosine_is_halfway_down_in_the_middle() -> None:
    work = workloads.get("stdlib-lm")
    assert work.learning_rate(20 + 115, 250) == pytest.approx(0.55 * work.lr)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps=0 must be an int of at least 1"),
        ({"warmup_steps": -1}, "warmup_steps=-1 must be an int of at least 0"),
        ({"lr": 0.0}, "lr=0.0 must be a finite number above 0"),
        ({"lr": float("nan")}, "lr=nan must be a finite number above 0"),
        (
            {"betas": (0.9, 1.0)},
            "betas=(0.9, 1.0) must be two numbers of at least 0 and below 1",
        ),
        ({"eps": -1e-8}, "eps=-1e-08 must be a finite number of at least 0"),
        (
            {"weight_decay": float("inf")},
            "weight_decay=inf must be a finite number of at least 0",
        ),
        ({"batch_size": 0}, "batch_size=0 must be an int of at least 1"),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_bad_options(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(BadValueError) as caught:
        dataclasses.replace(workloads.get(name), **options)
    assert str(caught.value) == message


def test_a_bad_seed() -> None:
    with pytest.raises(BadValueError) as caught:
        workloads.get("digits").model(-1)
    assert str(caught.value) == "seed=-1 must be an int of at least 0"


def test_settings_tell_variants_apart() -> None:
    work = workloads.get("stdlib-lm-tiny")
    settings = work.settings()
    assert settings["shape"]["width"] == 64
    assert len(settings["data"]) == 16
    for field in dataclasses.fields(work):
        assert (field.name in settings) == (field.name != "steps")


def test_every_workload_is_found_by_its_own_name() -> None:
    names = workloads.names()
    assert names == ["digits", "stdlib-lm", "stdlib-lm-tiny"]
    assert all(REGISTRY[name].name == workloads.get(name).name == name for name in names)


def test_an_unknown_workload() -> None:
    with pytest.raises(BadValueError) as caught:
        workloads.get("stdlib")
    assert str(caught.value) == (
        "workload='stdlib' is unknown; allowed are digits, stdlib-lm, stdlib-lm-tiny; "
        "nearest match: stdlib-lm"
    )


def test_options_are_the_workloads_fields() -> None:
    with pytest.raises(BadValueError) as caught:
        workloads.get("digits", batchsize=8)
    assert str(caught.value).startswith("batchsize is not an option of digits; allowed are ")
    assert str(caught.value).endswith("nearest match: batch_size")
    assert workloads.get("digits", lr=0.5).lr == 0.5
