"""The items of a sweep: small, the same everywhere, told apart by digests."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest
import torch

import qmaps
from qmaps import capture, sweep
from qmaps.algebra.pair import Pair
from qmaps.errors import BadTypeError, BadValueError
from qmaps.sweep.plan import Item
from qmaps.sweep.run import Meter
from tests.sweep.data import SHAPES, SPECS, on_disk, same, tensors


def test_an_item_for_each_parameter(tmp_path: Path) -> None:
    path = on_disk(tmp_path)
    items = sweep.plan(path, SPECS, min_quantized_size=5000)
    assert [(item.parameter, item.numel) for item in items] == [
        ("a", 60300), ("c", 100000), ("first", 5400),
    ]  # fmt: skip
    assert items[2].states == ("exp_avg",)
    assert all(item.source == str(path) for item in items)
    assert all(len(pickle.dumps(item)) < 3000 for item in items)
    for item in items:
        again = pickle.loads(pickle.dumps(item))
        assert again == item
        same(again.measure(), item.measure(capture.load(path)))


def test_items_with_codebooks_of_users_and_frozen_maps_can_be_pickled(tmp_path: Path) -> None:
    mine = qmaps.Codebook(torch.linspace(-1, 1, 9), label="mine")
    frozen = qmaps.quantizer("B64/lloyd@4s").fit(tensors()["a"]["exp_avg"])
    [item, *_] = sweep.plan(on_disk(tmp_path), ["B64/mine@4s", frozen], codebooks=[mine])
    same(pickle.loads(pickle.dumps(item)).measure(), item.measure())


def test_digests_tell_items_and_sweeps_apart(tmp_path: Path) -> None:
    path = on_disk(tmp_path)
    items = sweep.plan(path, SPECS)
    assert len({item.digest for item in items}) == len(SHAPES)
    copy = tmp_path / "copy.safetensors"
    shutil.copy(path, copy)
    assert [item.digest for item in sweep.plan(copy, SPECS)] == [item.digest for item in items]
    other = tensors()
    other["c"]["exp_avg"][0, 0] += 1
    changed = capture.recorder.write(
        capture.CapturedStates.from_tensors(other, step=7), tmp_path / "o"
    )
    for states, specs, least in (
        (path, SPECS[1:], 4096), (path, SPECS, 1000), (changed, SPECS, 4096),
    ):  # fmt: skip
        found = sweep.plan(states, specs, min_quantized_size=least)
        assert {item.digest for item in found}.isdisjoint(item.digest for item in items)


def test_digests_tell_codebooks_of_one_label_apart(tmp_path: Path) -> None:
    path = on_disk(tmp_path)
    x = tensors()["a"]["exp_avg"]
    for spec in ("B64/mine@3s", "B64/mine@3s + 32-bit"):
        digests = [
            sweep.plan(path, [spec], codebooks=[qmaps.Codebook(values, label="mine")])[0].digest
            for values in ([-1, -0.25, 0, 0.25, 1], [-1, -0.5, 0, 0.5, 1], [-1, -0.25, 0, 0.25, 1])
        ]
        assert digests[0] == digests[2] != digests[1]
    fitted = qmaps.quantizer("B64/lloyd@4s")
    plans = [sweep.plan(path, [q]) for q in (fitted, fitted.fit(x), fitted.fit(x.abs()))]
    assert len({items[0].digest for items in plans}) == 3


def test_states_with_checksums_are_not_read_for_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = on_disk(tmp_path)
    optimizer = tmp_path / "optimizer.pt"
    state = {"step": torch.tensor(3.0), **tensors()["a"]}
    torch.save({"state": {0: state}, "param_groups": [{"params": [0], "eps": 1e-8}]}, optimizer)
    before = sweep.plan(optimizer, SPECS)
    state["exp_avg"][5, 5] += 1
    torch.save({"state": {0: state}, "param_groups": [{"params": [0], "eps": 1e-8}]}, optimizer)

    def read(*given: object, **named: object) -> torch.Tensor:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr(capture.CapturedStates, "tensor", read)
    assert len(sweep.plan(path, SPECS)) == len(SHAPES)
    assert sweep.plan(optimizer, SPECS)[0].digest != before[0].digest


def test_throughput_and_time_left() -> None:
    items = [
        Item(number, "", number, name, (), numel, (), ())
        for number, (name, numel) in enumerate({"a": 3_000_000, "b": 6_000_000}.items())
    ]
    seconds = iter([0.0, 1.0, 2.0])
    meter = Meter(items, clock=lambda: next(seconds))
    assert meter.note(items[0]) == "a"
    meter.add(items[0])
    assert meter.note(items[1]) == "b (1.5M elements/s, 4 s left)"


def test_one_spec_need_not_be_a_list() -> None:
    states = {"a": tensors()["a"]}
    for spec in SPECS[:2]:
        same(sweep.run(states, spec), sweep.run(states, [spec]))
    for given in (qmaps.quantizer(SPECS[0]), Pair.parse(SPECS[1])):
        same(sweep.run(states, given), sweep.run(states, [str(given)]))
    with pytest.raises(BadTypeError) as caught:
        sweep.run(states, 5)  # type: ignore[arg-type]
    assert str(caught.value) == ("specs=5 must be a spec such as 'B128/DE@4s', or a list of them")


def test_numbers_as_text(tmp_path: Path) -> None:
    path = on_disk(tmp_path)

    def digests(**given: object) -> list[str]:
        return [item.digest for item in sweep.plan(path, SPECS, **given)]  # type: ignore[arg-type]

    assert digests(sample="5%") == digests(sample="0.05") == digests(sample=0.05) != digests()
    assert digests(sample="100%") == digests(sample=1) == digests(sample=1.0)
    for text in ("1", "0.51", "101%", "0", "0%", "some", "-1%", "nan"):
        with pytest.raises(BadValueError) as caught:
            sweep.plan(path, SPECS, sample=text)
        assert str(caught.value) == (
            f"sample={text!r} must be a share above 0 and at most 100%, such as 1% or 0.01; above "
            "0.5 with a percent sign"
        )
    with pytest.raises(BadTypeError) as wrong:
        digests(sample=True)
    assert str(wrong.value) == "sample=True must be a number, or a text such as '1%'"
