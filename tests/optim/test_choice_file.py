"""A choice of quantizers on its way through a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import qmaps
from qmaps import lpmm
from qmaps.errors import BadTypeError, BadValueError, OutputError, QmapsError
from qmaps.optim import AdamW, Choice
from qmaps.storage import settings

# Values with decimals cut short in files, and one in another form than the shortest.
MINE = qmaps.Codebook([-1, -1 / 3, -1e-7 / 3, 0, 1 / 3, 0.7, 1], label="First-3fa9c1", bits=4)
THIRD = qmaps.Codebook([0, 0.5, 1], label="third", signed=True)
OTHER = qmaps.Codebook(torch.logspace(-6, 0, 200), label="second")


def choice() -> Choice:
    return Choice(
        {"exp_avg": qmaps.quantizer("B32x8/first-3fa9c1@4s+sr", [MINE]), "exp_avg_sq": "32-bit"},
        {
            "0.*": None,
            "*.weight": {
                "exp_avg": "b128/de@4s+sr",
                "exp_avg_sq": qmaps.quantizer("B64/second@8u", [OTHER]),
            },
            "2.bias": "4bit",
            '"é\U0001f600': {"exp_avg": qmaps.quantizer("B64/third@2s", [THIRD])},
        },
        {"checkpoint": "checkpoint-5", "step": 5, "loss": float("nan")},
    )  # fmt: skip


def trained(**options: object) -> AdamW:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(90, 80), nn.Linear(80, 90), nn.Linear(90, 70))
    optimizer = AdamW(net.named_parameters(), lr=1e-2, min_quantized_size=0, **options)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(4, 90)).square().mean().backward()
        optimizer.step()
    return optimizer


def without_unmatched(options: dict) -> dict:
    overrides = {key: override for key, override in options["overrides"].items() if key[0] != '"'}
    return {**options, "overrides": overrides}


@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_an_optimizer_from_a_file_equals_one_from_objects(ending: str, tmp_path: Path) -> None:
    if ending == "yaml":
        pytest.importorskip("yaml", reason="PyYAML is not installed")
    path = tmp_path / f"choice.{ending}"
    choice().save(path)
    read = Choice.load(path)
    assert list(read.overrides) == list(choice().overrides)  # the first match decides
    assert read.codebooks() == {"First-3fa9c1": MINE, "second": OTHER, "third": THIRD}
    assert read == Choice(choice().state_quantizers, choice().overrides, read.provenance)
    assert read.provenance == {
        "checkpoint": "checkpoint-5", "step": 5, "loss": None,
        "versions": {"qmaps": qmaps.__version__, "torch": str(torch.__version__)},
    }  # fmt: skip

    objects = trained(**without_unmatched(choice().kwargs))
    loaded = trained(**without_unmatched(qmaps.load_choice(path)))
    assert [(r.parameter, r.quantizer) for r in loaded.memory()] == [
        ("0.weight", None), ("0.weight", None), ("0.bias", None), ("0.bias", None),
        ("1.weight", "B128/DE@4s+sr"), ("1.weight", "B64/second@8u"),
        ("1.bias", "B32x8/First-3fa9c1@4s+sr"), ("1.bias", None),
        ("2.weight", "B128/DE@4s+sr"), ("2.weight", "B64/second@8u"),
        ("2.bias", "B64xbf16/mu-law10:linear0@5s+qsr"), ("2.bias", "B64xbf16/geometric@3u+qsr"),
    ]  # fmt: skip
    for expected, actual in zip(objects.state.items(), loaded.state.items(), strict=True):
        assert torch.equal(expected[0], actual[0])
        for state in ("exp_avg", "exp_avg_sq"):
            a, b = expected[1][state], actual[1][state]
            if isinstance(a, qmaps.QuantizedTensor):
                assert torch.equal(a.packed, b.packed)
                a, b = a.dequantize(), b.dequantize()
            assert torch.equal(a, b)


def test_the_code_makes_the_same_optimizer() -> None:
    results = {}
    text = choice().code
    assert max(map(len, text.splitlines())) <= 100
    text = text.replace("optimizer = AdamW(\n    model.named_parameters(),", "found.update(")
    exec(text, {"found": results})
    assert results["state_quantizers"] == choice().state_quantizers
    assert Choice(**results).overrides == choice().overrides
    assert list(results["overrides"]) == list(choice().overrides)


def test_a_file_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"state_quantizers": "4bit", "overrides": {"*.bias": "32-bit", "a": null}}')
    assert qmaps.load_choice(path) == {
        "state_quantizers": "4bit", "overrides": {"*.bias": None, "a": None},
    }  # fmt: skip
    assert Choice.load(path).provenance == {"versions": {}}
    path.write_text('{"state_quantizers": {}}')
    assert qmaps.load_choice(path) == {"state_quantizers": {}}
    Choice.load(path).save(path)
    assert qmaps.load_choice(path) == {"state_quantizers": {}}
    path.write_text('{"state_quantizers": "8bit", "min_quantized_size": 0}')
    assert qmaps.load_choice(path) == {"state_quantizers": "8bit", "min_quantized_size": 0}
    Choice.load(path).save(path)
    assert qmaps.load_choice(path)["min_quantized_size"] == 0
    assert Choice.load(path).code.endswith('quantizers="8bit",\n    min_quantized_size=0,\n)')


NO_CHOICE = "it is damaged or no choice of quantizers; expected JSON, a dict"
KEYS = "format, optimizer, state_quantizers, overrides, min_quantized_size, codebooks, provenance"
FILES = {
    "": NO_CHOICE,
    "[]": NO_CHOICE,
    "{": NO_CHOICE,
    "[[": NO_CHOICE,
    '{"a": 1}': "it is no choice of quantizers; 'state_quantizers' is missing",
    '{"state_quantizers": "9bit"}': "state_quantizers='9bit' is not a preset; allowed are 32bit, "
    "8bit, 4bit, 3bit, 2bit, paper-8bit, paper-4bit, 'SIGNED + UNSIGNED' of specs, or a dict from "
    "state names to specs; nearest match: 8bit",
    '{"state_quantizers": 4}': "state_quantizers=4 must be a preset's name, a dict from state "
    "names to specs, or None",
    '{"state_quantizers": {"exp_avg": "B8/mine@3s"}}': "unknown map",
    '{"state_quantizers": {"exp_avg": 8}}': "spec=8 must be a str such as 'B128/DE@4s', or a "
    "Quantizer",
    '{"state_quantizers": "8bit", "overrides": ["a"]}': "overrides=['a'] must be a dict from "
    "parameter names, or patterns of names, to quantizers",
    '{"state_quantizers": "8bit", "override": {}}': f"it has the key 'override'; allowed are {KEYS}"
    "; nearest match: overrides",
    '{"state_quantizers": "8bit", "format": 2}': "format=2 is not supported; 1 is",
    '{"state_quantizers": "8bit", "optimizer": "a b"}': "optimizer='a b' must be the name of a "
    "class",
    '{"state_quantizers": "8bit", "codebooks": {"a": {"values": [1]}}}': "values has 1 entries; 2 "
    "to 65536 are allowed",
    '{"state_quantizers": "8bit", "min_quantized_size": "9"}': "min_quantized_size='9' must be an "
    "int or None",
    '{"state_quantizers": "8bit", "min_quantized_size": -1}': "min_quantized_size=-1 must be 0 to "
    "2**53",
    '{"state_quantizers": "8bit", "codebooks": {"a": 7}}': "damaged",
    '{"state_quantizers": "8bit", "provenance": [7]}': "damaged",
    '{"state_quantizers": "8bit", "overrides": {"*": null, "*": "4bit"}}': "it has the key '*' "
    "twice in one dict",
}


@pytest.mark.parametrize("number", range(len(FILES)))
def test_damaged_and_foreign_files_are_one_line(number: int, tmp_path: Path) -> None:
    content, message = list(FILES.items())[number]
    path = tmp_path / "c.json"
    path.write_text(content)
    with pytest.raises(BadValueError) as caught:
        qmaps.load_choice(path)
    text = str(caught.value)
    assert "\n" not in text
    if message == "damaged":
        assert text == f"{str(path)!r} is damaged: its parts do not fit together"
    elif message == "unknown map":
        assert "unknown map 'mine'; allowed are " in text
    else:
        assert text == f"{str(path)!r}: {message}"


def test_aliases_in_yaml(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="PyYAML is not installed")
    path = tmp_path / "c.yaml"
    path.write_text("state_quantizers: &a {exp_avg: B8/DE@4s}\noverrides: {x: *a, y: {<<: *a}}")
    options = qmaps.load_choice(path)
    assert options["overrides"] == dict.fromkeys("xy", options["state_quantizers"])
    path.write_text("state_quantizers: 8bit\nprovenance:\n  a: [x, x]\n  a: 2\n")
    with pytest.raises(BadValueError) as caught:
        qmaps.load_choice(path)
    assert str(caught.value) == f"{str(path)!r}: it has the key 'a' twice in one dict"


def test_yaml_may_stand_for_as_many_values_as_the_limit_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("yaml", reason="PyYAML is not installed")
    path = tmp_path / "c.yaml"
    path.write_text("state_quantizers: 8bit\nprovenance: {a: &a [x, y], b: *a, c: *a}\n")
    # A dict, its 2 keys, a text, a dict with 3 keys and 3 lists, each of 2 texts.
    values = 1 + 2 + 1 + 1 + 3 + 3 * 3
    monkeypatch.setattr(settings, "ALIASED", values - len(path.read_text()))
    assert qmaps.load_choice(path)
    monkeypatch.setattr(settings, "ALIASED", values - len(path.read_text()) - 1)
    with pytest.raises(BadValueError) as caught:
        qmaps.load_choice(path)
    assert str(caught.value) == (
        f"{str(path)!r}: its aliases stand for too many values; write them out"
    )


def test_json_that_is_nested_too_deeply_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_deep(*_: object, **__: object) -> None:
        raise RecursionError

    monkeypatch.setattr(settings.json, "loads", too_deep)
    path = tmp_path / "c.json"
    path.write_text("{}")
    with pytest.raises(BadValueError) as caught:
        qmaps.load_choice(path)
    assert str(caught.value) == f"{str(path)!r}: {NO_CHOICE}"


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    choice().save(path)
    content = path.read_bytes().rstrip()
    for size in range(0, len(content), 97):
        path.write_bytes(content[:size])
        with pytest.raises(BadValueError):
            Choice.load(path)


def test_unsavable_choices_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def message(call: object, kind: type[Exception] = BadValueError) -> str:
        with pytest.raises(QmapsError) as caught:
            call()
        assert isinstance(caught.value, kind)
        return str(caught.value)

    namesake = qmaps.Codebook([-1, 0, 1], label="first-3FA9C1", bits=4)
    two = {"a": {"exp_avg": qmaps.quantizer("B8/first-3fa9c1@4s", [namesake])}}
    assert message(lambda: Choice(choice().state_quantizers, two)) == (
        "two codebooks have the label 'first-3FA9C1'; each needs its own label"
    )
    fitted = qmaps.quantizer("B8/lloyd@4s").fit(torch.randn(100))
    assert message(lambda: Choice({"exp_avg": fitted})) == (
        "B8/lloyd@4s has a codebook that was fitted to one tensor; a choice accepts "
        "qmaps.Codebook(values, label=...)"
    )
    assert message(lambda: Choice("8bit", {7: None}), BadTypeError) == (
        "overrides has the key 7; a key must be a str"
    )
    odd = {"checkpoint": object}
    assert message(lambda: Choice("8bit", provenance=odd), BadTypeError).startswith("provenance=")
    assert message(lambda: choice().save(tmp_path / "c.txt")) == (
        f"path={str(tmp_path / 'c.txt')!r} must end in .json, .yaml or .yml"
    )
    (tmp_path / "c.json").mkdir()
    assert "cannot be written" in message(lambda: choice().save(tmp_path / "c.json"), OutputError)
    assert "cannot be read" in message(lambda: Choice.load(tmp_path / "c.json"))

    monkeypatch.setitem(sys.modules, "yaml", None)
    for call in (choice().save, Choice.load):
        assert message(lambda call=call: call(tmp_path / "c.yaml")) == (
            f"path={str(tmp_path / 'c.yaml')!r} needs PyYAML, which is not installed (pip install "
            "pyyaml); JSON needs nothing"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["c.json"]
    assert json.loads(choice().to_json())["codebooks"]["First-3fa9c1"]["values"][1] == -0.33333334


def write_choice(path: Path) -> Path:
    """Write a file with quantizers, overrides, a size and a codebook."""
    choice = Choice(
        {"exp_avg": "B128/DE@4s+sr", "exp_avg_sq": "B64xbf16/geometric@3u+qsr"},
        {"1.weight": {"exp_avg": qmaps.quantizer("B64/mine@2s", [TINY])}, "*.bias": None},
        min_quantized_size=100,
    )
    choice.save(path)
    return path


TINY = qmaps.Codebook([-1, -0.1, 0, 1], label="mine")


def planned(optimizer: torch.optim.Optimizer) -> list[tuple[str, str, str | None]]:
    return [(row.parameter, row.state, row.quantizer) for row in optimizer.memory()]


def named() -> list[tuple[str, nn.Parameter]]:
    return list(nn.Sequential(nn.Linear(64, 80), nn.Linear(80, 64)).named_parameters())


@pytest.mark.parametrize("kind", ["str", "path", "group", "yaml"])
def test_a_file_in_place_of_a_preset(kind: str, tmp_path: Path) -> None:
    if kind == "yaml":
        pytest.importorskip("yaml", reason="PyYAML is not installed")
    path = write_choice(tmp_path / ("c.yaml" if kind == "yaml" else "c.json"))
    expected = planned(AdamW(named(), **qmaps.load_choice(path)))
    assert ("1.weight", "exp_avg", "B64/mine@2s") in expected
    file = path if kind == "path" else str(path)
    if kind == "group":
        optimizer = AdamW([{"params": named(), "state_quantizers": file}])
    else:
        optimizer = AdamW(named(), state_quantizers=file)
    assert planned(optimizer) == expected


def test_arguments_override_a_file(tmp_path: Path) -> None:
    path = str(write_choice(tmp_path / "c.json"))
    actual = planned(
        AdamW(named(), state_quantizers=path, overrides={"1.*": "8bit"}, min_quantized_size=64)
    )
    assert ("1.weight", "exp_avg", "B256/DE-sym@8s") in actual
    assert ("1.bias", "exp_avg", None) in actual  # 64 elements
    assert ("0.bias", "exp_avg", None) in actual  # by the file
    plain = tmp_path / "plain.json"
    Choice("4bit").save(plain)
    actual = planned(AdamW(named(), overrides={"0.weight": str(plain)}))
    assert ("0.weight", "exp_avg", "B64xbf16/mu-law10:linear0@5s+qsr") in actual
    assert ("1.weight", "exp_avg", None) in actual


@pytest.mark.parametrize(("argument", "minimum"), [(None, 100), (4096, 4096), (0, 0)])
@pytest.mark.parametrize("cls", [AdamW, lpmm.LPMMAdam])
def test_the_least_size_beside_a_file(
    argument: int | None, minimum: int, cls: Any, tmp_path: Path
) -> None:
    """4096 and 0, the sizes without a file, are accepted like any other."""
    path = tmp_path / "c.json"
    Choice("8bit", min_quantized_size=100).save(path)
    layer = nn.Linear(8, 8)
    params = (lpmm.convert(layer) if cls is lpmm.LPMMAdam else layer).parameters()
    optimizer = cls(params, state_quantizers=str(path), min_quantized_size=argument)
    assert optimizer.param_groups[0]["min_quantized_size"] == minimum
    usual = cls(optimizer.param_groups[0]["params"])
    assert usual.param_groups[0]["min_quantized_size"] == (0 if cls is lpmm.LPMMAdam else 4096)


def test_wrong_and_missing_files_are_named_with_their_option(tmp_path: Path) -> None:
    missing, unlike, sound = (str(tmp_path / f"{n}.json") for n in ("none", "other", "whole"))
    Path(unlike).write_text('{"verdict": "safe"}')
    write_choice(Path(sound))
    for options, message in (
        ({"state_quantizers": missing},
         f"state_quantizers={missing!r}: it cannot be read (No such file or directory)"),
        ({"state_quantizers": unlike},
         f"state_quantizers={unlike!r}: it is no choice of quantizers; 'state_quantizers' is "
         "missing"),
        ({"overrides": {"*": sound}},
         f"overrides['*']={sound!r} has overrides of its own; give such a file as "
         "state_quantizers"),
    ):  # fmt: skip
        with pytest.raises(BadValueError) as caught:
            AdamW(named(), **options)
        assert str(caught.value) == message
