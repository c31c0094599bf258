from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import qmaps
from qmaps import QuantizedTensor
from qmaps.algebra import saved as store
from qmaps.storage import tensors

X = torch.linspace(-2, 3, 300)


def test_plain_form_loads_without_executing_code() -> None:
    for spec in ("B128x8&row/lloyd@3s+sr", "rank1/DE@8s"):
        t = qmaps.quantizer(spec).quantize(X.view(10, 30))
        buffer = io.BytesIO()
        torch.save(store.to_plain(t), buffer)
        buffer.seek(0)
        back = store.from_plain(torch.load(buffer, weights_only=True))
        assert back.quantizer == t.quantizer
        assert torch.equal(back.dequantize(), t.dequantize())


def test_several_tensors_in_one_file(tmp_path) -> None:
    codebook = qmaps.Codebook([-1, 0, 1], label="mine")
    tensors = {
        "a/b.c": qmaps.quantizer("B128/DE@4s").quantize(X),
        "": qmaps.quantizer("tensor/mine@2s", [codebook]).quantize(X),
        "empty": qmaps.quantizer("B7/quantile@4s").quantize(torch.zeros(0, 3)),
    }
    qmaps.save(tensors, tmp_path / "all.safetensors")
    back = qmaps.load(tmp_path / "all.safetensors")
    assert list(back) == list(tensors)
    for name, t in tensors.items():
        assert back[name].quantizer == t.quantizer
        assert torch.equal(back[name].dequantize(), t.dequantize())


def test_damaged_files_are_refused(tmp_path) -> None:
    path = tmp_path / "t.safetensors"
    qmaps.save({"tensor": qmaps.quantizer("B128/lloyd@4s").quantize(X)}, path)
    data = path.read_bytes()
    for size in [*range(0, len(data), 17), len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match="cannot be read as safetensors"):
            qmaps.load(path)
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        qmaps.load(tmp_path / "missing.safetensors")


def test_parts_that_do_not_fit_are_refused() -> None:
    plain = store.to_plain(qmaps.quantizer("B128/DE@4s").quantize(X))
    for change, message in (
        ({"shape": [301]}, (
            "packed has 150 elements of torch.uint8; B128/DE@4s of shape (301,) needs 151 "
            "elements of torch.uint8"
        )),
        ({"scales": []}, "scales are (); B128 of shape (300,) needs ((torch.float32, (3,)),)"),
        ({"format": 99}, (
            "format=99 of a saved quantized tensor is not supported; supported are 1, and 2 in a "
            "state_dict"
        )),
    ):  # fmt: skip
        with pytest.raises(ValueError) as caught:
            store.from_plain({**plain, **change})
        assert str(caught.value) == message
    for change, reason in (
        ({"packed": None}, "AttributeError"),
        ({"scales": [None]}, "AttributeError"),
        ({"shape": None}, "TypeError"),
        ({"spec": 4}, "AttributeError"),
    ):
        with pytest.raises(ValueError, match=rf"quantized tensor are damaged \({reason}"):
            store.from_plain({**plain, **change})
    del plain["packed"]
    with pytest.raises(ValueError, match="a saved quantized tensor lacks packed"):
        store.from_plain(plain)


def test_codes_beyond_the_codebook_are_refused() -> None:
    book = qmaps.maps.Codebook(torch.tensor([-1.0, 0.0, 1.0]))
    plain = store.to_plain((qmaps.normalize.BlockWise(8) / book).quantize(X))
    plain["packed"][2] |= 3
    with pytest.raises(ValueError, match=r"packed holds the code 3; .* has 3 codes"):
        store.from_plain(plain)


def read(path: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, json.loads(file.metadata()["qmaps_tensors"])


def test_a_file_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    for metadata in (None, {"format": "pt"}):
        save_file({"weight": X}, path, metadata=metadata)
        with pytest.raises(qmaps.QmapsError) as caught:
            qmaps.load(path)
        assert str(caught.value) == f"{str(path)!r} holds no quantized tensors of qmaps"
    path.write_text("not safetensors")
    with pytest.raises(qmaps.QmapsError, match="cannot be read as safetensors"):
        qmaps.load(path)
    with pytest.raises(qmaps.QmapsError, match="cannot be read as safetensors"):
        qmaps.load(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda metadata: metadata[0].update(format=2),
        lambda metadata: metadata[0].pop("parts"),
        lambda metadata: metadata[0].pop("name"),
        lambda metadata: metadata[0].pop("spec"),
        lambda metadata: metadata[0].pop("shape"),
        lambda metadata: metadata[0].update(shape=[299, 2]),
        lambda metadata: metadata[0].update(shape=[-1, -300]),
        lambda metadata: metadata[0].update(shape=["many"]),
        lambda metadata: metadata[0].update(shape=7),
        lambda metadata: metadata[0].update(parts=5),
        lambda metadata: metadata[0].update(parts="two"),
        lambda metadata: metadata[1].update(spec="B128/XY@4s"),
        lambda metadata: metadata[1].update(spec="B64/DE@4s"),
        lambda metadata: metadata[1].update(spec="B128/DE@5s"),
        lambda metadata: metadata[1].update(spec=4),
        lambda metadata: metadata[0]["map"].update(bits=3),
        lambda metadata: metadata[0]["map"].update(bits="four"),
        lambda metadata: metadata[0]["map"].update(other=1),
        lambda metadata: metadata[0]["map"].update(signed=False),
        lambda metadata: metadata[0]["map"].pop("label"),
        lambda metadata: metadata[0]["map"].pop("normalizer"),
        lambda metadata: metadata[0]["map"].update(normalizer="C12"),
        lambda metadata: metadata.append(dict(metadata[1])),
        lambda metadata: metadata.append("text"),
    ],
)
def test_damaged_metadata_is_refused(
    damage: Callable[[list[dict[str, Any]]], object], tmp_path: Path
) -> None:
    path = tmp_path / "t.safetensors"
    tensors = {
        "a": qmaps.quantizer("B128/lloyd@4s").quantize(X),
        "b": qmaps.quantizer("B128/DE@4s").quantize(X),
    }
    qmaps.save(tensors, path)
    arrays, metadata = read(path)
    damage(metadata)
    save_file(arrays, path, metadata={"qmaps_tensors": json.dumps(metadata)})
    if metadata[0].get("map", {}).get("label", "") == "":
        # The label names the codebook and nothing else.
        assert list(qmaps.load(path)) == ["a", "b"]
        return
    with pytest.raises(qmaps.errors.BadValueError) as caught:
        qmaps.load(path)
    assert "\n" not in str(caught.value)


def test_metadata_that_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    for text in ("", "[", "{}{}", "7", '{"a": 1}'):
        save_file({"0.packed": X}, path, metadata={"qmaps_tensors": text})
        with pytest.raises(qmaps.errors.BadValueError, match="has damaged metadata"):
            qmaps.load(path)


def test_an_unknown_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    qmaps.save({"tensor": qmaps.quantizer("B128/DE@4s").quantize(X)}, path)
    arrays, metadata = read(path)
    metadata[0]["format"] = 2
    save_file(arrays, path, metadata={"qmaps_tensors": json.dumps(metadata)})
    with pytest.raises(qmaps.errors.BadValueError) as caught:
        qmaps.load(path)
    assert str(caught.value) == (
        "format=2 of a saved quantized tensor is not supported; supported are 1, and 2 in a "
        "state_dict"
    )


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.safetensors"
    t = qmaps.quantizer("B128/DE@4s").quantize(X)
    qmaps.save({"tensor": t}, path)
    before = path.read_bytes()

    def half_way(tensors: object, filename: Path, metadata: object) -> None:
        Path(filename).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensors, "save_file", half_way)
    with pytest.raises(qmaps.errors.OutputError) as caught:
        qmaps.save({"tensor": qmaps.quantizer("tensor/DE@8s").quantize(X)}, path)
    assert str(caught.value) == f"{str(path)!r} cannot be written (No space left on device)"
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    t = qmaps.quantizer("B128/DE@4s").quantize(X)
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "t", tmp_path / "none" / "t", Path("/proc/qmaps/t")):
        with pytest.raises(qmaps.errors.OutputError, match="cannot be written"):
            qmaps.save({"tensor": t}, place)


def test_views_and_shared_storage_can_be_saved(tmp_path: Path) -> None:
    t = qmaps.quantizer("B128&B128/DE@4s").quantize(X)
    shared = QuantizedTensor(t.quantizer, t.shape, t.packed, (t.scales[0], t.scales[0]))
    qmaps.save({"one": shared, "two": shared}, tmp_path / "t")
    back = qmaps.load(tmp_path / "t")
    assert torch.equal(back["one"].dequantize(), t.dequantize())
    assert torch.equal(back["two"].dequantize(), t.dequantize())
