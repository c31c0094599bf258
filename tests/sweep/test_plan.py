"""The items of a sweep: small, and the same on every machine; digests identify sweeps."""

from __future__ import annotations

import pickle
import shutil
from importlib import import_module
from pathlib import Path

import pytest
import torch

import qmaps
from qmaps import capture, sweep
from qmaps.algebra.pair import Pair
from qmaps.errors import BadTypeError
from tests.sweep.data import SHAPES, SPECS, digest, on_disk, plan, same, tensors


def test_an_item_for_each_parameter(tmp_path: Path) -> None:
    path = on_disk(tmp_path)
    items = plan(path, SPECS, min_quantized_size=5000)
    assert [(item.parameter, item.numel) for item in items] == [
        ("a", 60300), ("c", 100000), ("first", 5400),
    ]  # fmt: skip
    assert items[2].states == ("exp_avg",)
    assert all(len(pickle.dumps(item)) < 3000 for item in items)
    for item in items:
        again = pickle.loads(pickle.dumps(item))
        assert again == item
        same(again.measure(capture.load(path)), item.measure(capture.load(path)))


def test_items_with_codebooks_of_users_and_frozen_maps_can_be_pickled(tmp_path: Path) -> None:
    codebook = qmaps.Codebook(torch.linspace(-1, 1, 9), label="mine")
    frozen = qmaps.quantizer("B64/lloyd@4s").fit(tensors()["a"]["exp_avg"])
    path = on_disk(tmp_path)
    [item, *_] = plan(path, ["B64/mine@4s", frozen], codebooks=(codebook,))
    states = capture.load(path)
    same(pickle.loads(pickle.dumps(item)).measure(states), item.measure(states))


def test_digests_tell_sweeps_apart(tmp_path: Path) -> None:
    path = on_disk(tmp_path)
    copy = tmp_path / "copy.safetensors"
    shutil.copy(path, copy)
    assert digest(copy, SPECS) == digest(path, SPECS)
    altered = tensors()
    altered["c"]["exp_avg"][0, 0] += 1
    changed = capture.recorder.write(
        capture.CapturedStates.from_tensors(altered, step=7), tmp_path / "o"
    )
    for states, specs, min_size in (
        (path, SPECS[1:], 4096), (path, SPECS, 1000), (changed, SPECS, 4096),
    ):  # fmt: skip
        assert digest(states, specs, min_quantized_size=min_size) != digest(path, SPECS)


def test_digests_tell_codebooks_of_one_label_apart(tmp_path: Path) -> None:
    path = on_disk(tmp_path)
    x = tensors()["a"]["exp_avg"]
    for spec in ("B64/mine@3s", "B64/mine@3s + 32-bit"):
        digests = [
            digest(path, [spec], codebooks=(qmaps.Codebook(values, label="mine"),))
            for values in ([-1, -0.25, 0, 0.25, 1], [-1, -0.5, 0, 0.5, 1], [-1, -0.25, 0, 0.25, 1])
        ]
        assert digests[0] == digests[2] != digests[1]
    fitted = qmaps.quantizer("B64/lloyd@4s")
    assert len({digest(path, [q]) for q in (fitted, fitted.fit(x), fitted.fit(x.abs()))}) == 3


def test_states_with_checksums_are_not_read_for_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = on_disk(tmp_path)
    optimizer = tmp_path / "optimizer.pt"
    state = {"step": torch.tensor(3.0), **tensors()["a"]}
    torch.save({"state": {0: state}, "param_groups": [{"params": [0], "eps": 1e-8}]}, optimizer)
    before = digest(optimizer, SPECS)
    state["exp_avg"][5, 5] += 1
    torch.save({"state": {0: state}, "param_groups": [{"params": [0], "eps": 1e-8}]}, optimizer)

    def read(*arguments: object, **named: object) -> torch.Tensor:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr(capture.CapturedStates, "tensor", read)
    assert len(plan(path, SPECS)) == len(SHAPES)
    assert digest(optimizer, SPECS) != before


def test_one_spec_need_not_be_a_list() -> None:
    states = {"a": tensors()["a"]}
    for spec in SPECS[:2]:
        same(sweep.run(states, spec), sweep.run(states, [spec]))
    for single in (qmaps.quantizer(SPECS[0]), Pair.parse(SPECS[1])):
        same(sweep.run(states, single), sweep.run(states, [str(single)]))
    with pytest.raises(BadTypeError) as caught:
        sweep.run(states, 5)  # type: ignore[arg-type]
    assert str(caught.value) == ("specs=5 must be a spec such as 'B128/DE@4s', or a list of them")


@pytest.mark.parametrize("work", [2 * 60300, 1])
def test_specs_of_a_large_parameter_are_measured_in_parts(
    work: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, specs = on_disk(tmp_path), ["B128/DE@4u", "B128/DE@4s", "tensor/linear@4s", *SPECS]
    frame = sweep.run(path, specs)
    monkeypatch.setattr(import_module("qmaps.sweep.plan"), "WORK", work)
    assert len(list(plan(path, specs)[0]._parts())) > 1
    order = ["parameter", "state", "quantizer"]
    parts = sweep.run(path, specs).sort_values(order, ignore_index=True)
    same(parts, frame.sort_values(order, ignore_index=True))
