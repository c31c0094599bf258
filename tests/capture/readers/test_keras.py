"""Keras 3: models with their optimizers, and variables with numbers for names."""

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from qmaps.capture import load
from qmaps.errors import CaptureError
from tests.capture.fixtures import HERE, expect

h5py = pytest.importorskip("h5py", reason="the extra keras is not installed")

NAMES = sorted(path.name for path in (HERE / "keras").iterdir() if path.is_dir())
MODELS = [name for name in NAMES if not name.endswith("-weights")]
LABELS = ["last.0", "last.1", "norm.0", "norm.1", "first.0"]
STEPS = {"adamw-shifted": 2}

pytestmark = pytest.mark.filterwarnings("ignore:.*has no betas")


@pytest.mark.parametrize("name", MODELS)
def test_values_are_those_of_keras(name: str) -> None:
    folder = HERE / "keras" / name
    states = load(folder / "model.keras")
    expect(states, f"keras/{name}")
    assert states.parameters() == LABELS
    assert states.step == STEPS.get(name, 4)
    assert "(in, out)" in states.note
    assert load(folder).fingerprint() == states.fingerprint()


def test_options_are_those_of_the_config() -> None:
    assert load(HERE / "keras/adamw-shifted").hyperparameters("norm.0") == {
        "lr": 1e-3,
        "betas": [0.9, 0.95],
        "eps": 1e-7,
        "weight_decay": 0.004,
    }


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_weights_alone(name: str) -> None:
    """Without a config, parameters have numbers; `names` are in the order of the model."""
    path = HERE / f"keras/{name}-weights/model.weights.h5"
    assert load(path).parameters()[0] == "group0.param0"
    states = load(path, names=LABELS)
    expect(states, f"keras/{name}-weights")
    assert states.step == 4


def test_weights_alone_with_shifted_numbers_are_refused() -> None:
    path = HERE / "keras/adamw-shifted-weights/model.weights.h5"
    with pytest.raises(CaptureError) as error:
        load(path)
    assert str(error.value) == (
        f"{str(path)!r} has 27 variables of AdamW, whose order cannot be told from shapes and "
        "signs; give the .keras file, which has its options"
    )


def test_without_h5py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    path = HERE / "keras/adam/model.keras"
    message = (
        f'{str(path)!r} is read by h5py, which is not installed; pip install "torch-qmaps[keras]"'
    )
    with pytest.raises(CaptureError, match=f"^{re.escape(message)}$"):
        load(path)


def rewritten(path: Path, change: Any = None, compression: int = zipfile.ZIP_STORED) -> Path:
    """A copy of a model with another config."""
    with zipfile.ZipFile(HERE / "keras/adam/model.keras") as source:
        records = {name: source.read(name) for name in source.namelist()}
    config = json.loads(records["config.json"])
    if change is not None:
        change(config)
    records["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    return path


def of(config: dict[str, Any]) -> dict[str, Any]:
    return config["compile_config"]["optimizer"]


CHANGES = {
    "has the optimizer 'Muon'; those of Keras that are read are Adam": lambda config: of(
        config
    ).update(class_name="Muon"),
    "has 12 variables of Adam, whose order cannot be told from its options": lambda config: of(
        config
    )["config"].update(use_ema=True, amsgrad=True),
    "parts do not fit together": lambda config: config.update(compile_config=[1]),
}


@pytest.mark.parametrize("message", CHANGES)
def test_configs_that_do_not_fit_are_refused(message: str, tmp_path: Path) -> None:
    path = rewritten(tmp_path / "model.keras", CHANGES[message])
    with pytest.raises(CaptureError, match=re.escape(message)):
        load(path)


def test_layers_that_do_not_fit_leave_numbers(tmp_path: Path) -> None:
    def freeze(config: dict[str, Any]) -> None:
        config["config"]["layers"][1]["config"]["trainable"] = False

    states = load(rewritten(tmp_path / "model.keras", freeze))
    assert states.parameters()[0] == "group0.param0"


def test_compressed_variables_are_refused(tmp_path: Path) -> None:
    path = rewritten(tmp_path / "model.keras", compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(CaptureError, match=r"has model.weights.h5 compressed, or a config.json of"):
        load(path)


def weights(path: Path) -> Path:
    path.write_bytes((HERE / "keras/adam-weights/model.weights.h5").read_bytes())
    return path


def test_variables_in_other_files_and_in_pieces_are_refused(tmp_path: Path) -> None:
    path = weights(tmp_path / "link.weights.h5")
    with h5py.File(path, "r+") as file:
        del file["optimizer/vars/2"]
        file["optimizer/vars/2"] = h5py.ExternalLink("other.h5", "/x")
    with pytest.raises(CaptureError, match=r"has the link 'optimizer/vars/2', not a variable$"):
        load(path)
    path = weights(tmp_path / "external.weights.h5")
    with h5py.File(path, "r+") as file:
        del file["optimizer/vars/2"]
        file["optimizer/vars"].create_dataset(
            "2", (4, 3), "f4", external=[(str(tmp_path / "other.bin"), 0, 48)]
        )
    with pytest.raises(CaptureError, match="has 'optimizer/vars/2' in pieces, in another file or"):
        load(path)
    path = weights(tmp_path / "chunks.weights.h5")
    with h5py.File(path, "r+") as file:
        del file["optimizer/vars/2"]
        file["optimizer/vars"].create_dataset("2", (2**30, 2**30), "f4", chunks=(1024, 1024))
    with pytest.raises(CaptureError, match="has 'optimizer/vars/2' in pieces, in another file or"):
        load(path)


def test_a_group_within_itself_is_refused(tmp_path: Path) -> None:
    path = weights(tmp_path / "circle.weights.h5")
    with h5py.File(path, "r+") as file:
        file["layers/circle"] = file["layers"]
    with pytest.raises(CaptureError, match=r"has a group within itself, or too deep$"):
        load(path)


def test_models_without_an_optimizer_are_refused(tmp_path: Path) -> None:
    path = weights(tmp_path / "model.weights.h5")
    with h5py.File(path, "r+") as file:
        del file["optimizer"]
    with pytest.raises(CaptureError, match="is a model of Keras without an optimizer's variables;"):
        load(path)


@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
def test_files_of_other_kinds_are_called_so(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"model{ending}"
    path.write_bytes(b"PAR1")
    with pytest.raises(CaptureError, match="is a Parquet file, which is not read;"):
        load(path)
    path.write_bytes(b"nothing")
    with pytest.raises(CaptureError, match=r"is no file of Keras 3, or is damaged$"):
        load(path)
