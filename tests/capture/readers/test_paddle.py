"""Paddle: pickles, of which the reader takes only arrays and numbers."""

import io
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from qmaps.capture import load
from qmaps.capture.conversion import convert_file
from qmaps.capture.readers.paddle import Whole
from qmaps.errors import BadValueError, CaptureError
from qmaps.storage import checkpoint
from tests.capture.fixtures import HERE, copied, expect
from tests.outside import CALLS, NAME, Outside

NAMES = sorted(path.name for path in (HERE / "paddle").iterdir() if path.is_dir())
COUNTED = {"adamw", "betas", "adamax"}

pytestmark = pytest.mark.filterwarnings("ignore:.*has no (betas|eps)")


@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_paddle(name: str) -> None:
    folder = HERE / "paddle" / name
    betas = (0.9, 0.95) if name == "betas" else None
    states = load(folder / "model.pdopt", betas=betas)
    expect(states, f"paddle/{name}")
    assert states.step == (3 if name in COUNTED else 0)
    assert "(in, out)" in states.note
    assert load(folder, betas=betas).fingerprint() == states.fingerprint()


def test_large_arrays_stay_in_the_file(tmp_path: Path) -> None:
    folder = copied("paddle/momentum", tmp_path)
    states = load(folder)
    before = states.tensor("0.weight", "momentum_buffer")
    (folder / "model.pdopt").unlink()
    assert states.tensor("0.weight", "momentum_buffer").equal(before)
    with pytest.raises(CaptureError, match=r"model\.pdopt' does not exist$"):
        states.tensor("1.weight", "momentum_buffer")


def test_names_are_paddles_without_the_model(tmp_path: Path) -> None:
    folder = copied("paddle/adamw", tmp_path)
    (folder / "model.pdparams").unlink()
    assert load(folder).parameters() == ["linear_0.w_0", "linear_0.b_0", "linear_1.w_0"]


def test_other_betas_are_asked_for() -> None:
    path = HERE / "paddle/betas/model.pdopt"
    with pytest.raises(CaptureError) as error:
        load(path)
    assert str(error.value) == (
        f"{str(path)!r} has 0.8145062327384949 as the next power of a beta, which is none of "
        "betas=(0.9, 0.999); give the optimizer's betas (--betas)"
    )
    with pytest.raises(CaptureError, match=r"which is none of betas=\(0.9, 0.9\); give the"):
        load(path, betas=(0.9, 0.9))


def saved(tmp_path: Path, **entries: object) -> Path:
    path = tmp_path / "o.pdopt"
    path.write_bytes(pickle.dumps(entries))
    return path


def powers(betas: tuple[float, float], steps: int) -> dict[str, np.ndarray]:
    """A state after a number of steps, with the powers as Paddle computes them."""
    state = {"w_moment1_0": np.ones(2, np.float32), "w_moment2_0": np.ones(2, np.float32)}
    for number, beta in enumerate(betas, start=1):
        power = np.float32(beta)
        for _ in range(steps):
            power *= np.float32(beta)
        state[f"w_beta{number}_pow_acc_0"] = np.array([power], np.float32)
    return state


@pytest.mark.parametrize("steps", [0, 1, 500, 5000, 60_000])
def test_steps_are_computed_from_the_powers(steps: int, tmp_path: Path) -> None:
    state = powers((0.9, 0.999), steps)
    if not steps:
        state["w_moment2_0"] *= 0
    assert load(saved(tmp_path, **state)).step == steps


def test_powers_of_a_device_that_rounds_otherwise(tmp_path: Path) -> None:
    state = powers((0.9, 0.999), 1000)
    state["w_beta2_pow_acc_0"] = np.array([0.999**1001], np.float32)
    with pytest.raises(CaptureError, match="is none of betas"):
        load(saved(tmp_path, **state))
    assert load(saved(tmp_path, **state), betas=(0.9, 0.999)).step == 1000


def test_powers_that_change_no_longer(tmp_path: Path) -> None:
    path = saved(tmp_path, **powers((0.9, 0.99), 20_000))
    with pytest.warns(UserWarning, match="has taken [0-9]+ steps or more: powers of betas"):
        assert 5000 < load(path, betas=(0.9, 0.99)).step < 20_000


def test_nothing_is_run(tmp_path: Path) -> None:
    path = saved(tmp_path, w_moment1_0=Outside())
    message = (
        f"{str(path)!r} would have to run code to load ({NAME}); only arrays and numbers are read"
    )
    with pytest.raises(CaptureError, match=f"^{re.escape(message)}$"):
        load(path)
    assert not CALLS


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    sound = (HERE / "paddle/adamw/model.pdopt").read_bytes()
    path = tmp_path / "o.pdopt"
    for content in (sound[:-40], b"", b"\x80\x04N.", sound.replace(b"moment1", b"momentX")):
        path.write_bytes(content)
        with pytest.raises(CaptureError, match=re.escape(repr(str(path)))):
            load(path)
    path.write_bytes(b"PAR1")
    with pytest.raises(CaptureError, match="is a Parquet file, which is not read;"):
        load(path)


@pytest.mark.parametrize("length", [b"\x8e" + b"\xff" * 8, b"\x8e" + (2**40).to_bytes(8, "little")])
def test_lengths_beyond_the_file_are_refused(length: bytes, tmp_path: Path) -> None:
    path = tmp_path / "o.pdopt"
    path.write_bytes(b"\x80\x04" + length + b"x.")
    with pytest.raises(CaptureError, match="is no pickle as Paddle writes it"):
        load(path)


def test_no_more_is_asked_for_than_the_file_has() -> None:
    asked = []

    class File(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            asked.append(size)
            return super().read(size)

    assert Whole(File(b"abc"), 3).read(2**40) == b"abc"
    assert asked == [3]


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.ones((2, 3), np.float32)),
        np.ones(2, ">f4"),
        np.ones(2, "f4").astype(object),
        np.ones(2, np.complex64),
    ],
)
def test_arrays_of_other_forms_are_refused(array: np.ndarray, tmp_path: Path) -> None:
    path = saved(tmp_path, w_velocity_0=array)
    with pytest.raises(CaptureError, match=re.escape(repr(str(path)))):
        load(path)


def test_sixteen_bit_integers_are_bfloat16(tmp_path: Path) -> None:
    path = saved(tmp_path, w_velocity_0=np.array([0x3F80, 0xC000], np.uint16))
    assert load(path).tensor("w", "momentum_buffer").tolist() == [1, -2]


def test_names_of_copies_in_float32(tmp_path: Path) -> None:
    path = saved(tmp_path, w_fp32_master_0_velocity_0=np.ones(2, np.float32), master_weights={})
    assert load(path).parameters() == ["w"]


def test_conversion_has_the_betas_and_the_note(tmp_path: Path) -> None:
    folder = HERE / "paddle/betas"
    (report,) = convert_file(folder, tmp_path / "o.pt", to="torch", betas=(0.9, 0.95), eps=1e-8)
    assert any("(in, out)" in note for note in report.notes)
    (group,) = checkpoint.load(tmp_path / "o.pt")["param_groups"]
    assert (group["betas"], group["eps"]) == ((0.9, 0.95), 1e-8)


@pytest.mark.parametrize(
    "options", [{"betas": (0.9, 1.0)}, {"betas": 3}, {"eps": -1}, {"eps": True}]
)
def test_options_that_no_optimizer_has(options: dict[str, object]) -> None:
    with pytest.raises(BadValueError, match="must be"):
        load(HERE / "paddle/adamw", **options)
