"""Conversion of torchao's checkpoints, and training in torchao resumed from ours."""

import io
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import qmaps
from qmaps import capture
from qmaps.capture.conversion import convert_file, convert_state_dict
from qmaps.cli import main
from qmaps.errors import BadValueError, CaptureError
from qmaps.optim import AdamW, AdamW8bit
from tests.capture.conversion.nets import resumed, trained

pytestmark = pytest.mark.slow

ao = pytest.importorskip("torchao.optim")

MAKES = [ao.AdamW8bit, ao.AdamW4bit, ao.AdamWFp8]


@pytest.fixture(autouse=True)
def _eager() -> Iterator[None]:
    """Run torchao's steps without the half minute of compilation."""
    with torch.compiler.set_stance("force_eager"):
        yield


def parts(state: Any) -> list[Tensor]:
    """The tensors in a state."""
    names = getattr(state, "tensor_attrs", None)
    return [state] if names is None else [getattr(state, name) for name in names]


def same(actual: dict[str, Any], expected: dict[str, Any]) -> bool:
    assert actual["state"].keys() == expected["state"].keys()
    return all(
        type(value) is type(expected["state"][key][name])
        and all(map(torch.equal, parts(value), parts(expected["state"][key][name])))
        for key, saved in actual["state"].items()
        for name, value in saved.items()
    )


@pytest.mark.parametrize("make", MAKES)
def test_its_states_decode_as_it_decodes_them(make: Callable[..., Any]) -> None:
    net, adam = trained(make)
    converted, report = convert_state_dict(adam.state_dict(), "torch", zeros="leave")
    assert report.lossless
    for param, ours in zip(net.parameters(), converted["state"].values(), strict=True):
        for name in ("exp_avg", "exp_avg_sq"):
            state = adam.state[param][name]
            assert ours[name].equal(state if type(state) is Tensor else state.dequantize())
    assert converted["param_groups"][0]["lr"] == 1e-3
    close = {ao.AdamW8bit: 1e-3, ao.AdamW4bit: 6e-3, ao.AdamWFp8: 3e-3}[make]
    weights = resumed(net, torch.optim.AdamW, converted)
    assert torch.allclose(weights, resumed(net, make, adam.state_dict()), rtol=0, atol=close)


@pytest.mark.parametrize(
    ("make", "specs", "how"),
    [
        (ao.AdamW8bit, ("B256/torchao@8s", "B256/torchao@8u"), "same values"),
        (ao.AdamW4bit, ("B128/torchao@4s", "B128/linear@4u"), "same values"),
        (ao.AdamWFp8, ("B256/e4m3@8s", "B256/e4m3@8s"), "same codes"),
    ],
)
def test_its_codes_go_to_qmaps_and_back(
    make: Callable[..., Any], specs: tuple[str, str], how: str
) -> None:
    net, adam = trained(make)
    saved = adam.state_dict()
    in_qmaps, report = convert_state_dict(saved, "qmaps", zeros="leave")
    assert tuple(row.became for row in report.states[:2]) == specs
    assert {row.how for row in report.states[:2]} == {how}
    assert max(row.mean_rel_error for row in report.states if row.elements > 4096) < 2e-7
    back, _ = convert_state_dict(in_qmaps, "torchao", zeros="leave")
    if how == "same values":
        assert same(back, saved)
        assert resumed(net, make, back).equal(resumed(net, make, saved))
    else:  # scales are divided by 448 and multiplied again
        assert all(
            parts(back["state"][0][name])[0].equal(parts(saved["state"][0][name])[0])
            for name in ("exp_avg", "exp_avg_sq")
        )
    # qmaps trains on with those codebooks and comes out where torchao does.
    moved = resumed(net, AdamW, in_qmaps)
    error = (moved - resumed(net, make, saved)).abs()
    assert error.mean() < 1e-4
    loaded = AdamW(net.named_parameters())
    loaded.load_state_dict(in_qmaps)
    assert loaded.state[net[0].weight]["exp_avg"].quantizer.spec == specs[0]


@pytest.mark.parametrize("states", [None, "8bit", "4bit", "fp8", "32bit"])
def test_torch_to_torchao(states: str | None) -> None:
    net, adam = trained(torch.optim.AdamW)
    converted, report = convert_state_dict(adam.state_dict(), "torchao", states=states)
    state = converted["state"][0]["exp_avg"]
    kinds = {"4bit": "OptimState4bit", "fp8": "OptimStateFp8", "32bit": "Tensor"}
    assert type(state).__name__ == kinds.get(str(states), "OptimState8bit")
    assert converted["param_groups"][0]["lr"].equal(torch.tensor(1e-3))
    if states != "32bit":
        assert report.states[0].how == "quantized"
        error = (state.dequantize() - adam.state_dict()["state"][0]["exp_avg"]).abs().max()
        assert report.states[0].max_abs_error == pytest.approx(float(error), rel=1e-6)
    make = {"4bit": ao.AdamW4bit, "fp8": ao.AdamWFp8}.get(str(states), ao.AdamW8bit)
    weights = resumed(net, make, converted)
    assert torch.allclose(weights, resumed(net, torch.optim.AdamW, adam.state_dict()), atol=6e-3)


def test_states_of_qmaps_keep_their_codes_and_block_size() -> None:
    net, adam = trained(AdamW, state_quantizers={"exp_avg": "B64/nf4@4s", "exp_avg_sq": None})
    converted, report = convert_state_dict(adam.state_dict(), "torchao")
    state = converted["state"][0]["exp_avg"]
    assert report.states[0].how == "same values"
    assert (type(state).__name__, state.block_size) == ("OptimState4bit", 64)
    assert state.dequantize().equal(adam.state[net[0].weight]["exp_avg"].dequantize())
    assert type(converted["state"][0]["exp_avg_sq"]) is Tensor
    resumed(net, ao.AdamW4bit, converted)
    # Blocks with float32 scales; torchao holds the same codes.
    net, adam = trained(AdamW, state_quantizers="B64/DE-sym@4s + B64/DE-0@4u")
    converted, report = convert_state_dict(adam.state_dict(), "torchao")
    assert report.lossless
    for name in ("exp_avg", "exp_avg_sq"):
        theirs, ours = converted["state"][0][name], adam.state[net[0].weight][name]
        assert type(theirs).__name__ == "OptimState4bit"
        assert theirs.dequantize().equal(ours.dequantize())
    resumed(net, ao.AdamW4bit, converted)
    # What blocks of it cannot be, is encoded as torchao encodes.
    _, adam = trained(AdamW, state_quantizers="paper-4bit")
    report = convert_state_dict(adam.state_dict(), "torchao")[1]
    assert [row.became for row in report.states[:2]] == ["B128/DE@4s", "B128/linear@4u"]


def test_bitsandbytes_to_torchao_and_back() -> None:
    bnb = pytest.importorskip("bitsandbytes").optim
    net, adam = trained(bnb.AdamW8bit)
    converted, report = convert_state_dict(adam.state_dict(), "torchao", zeros="leave")
    assert report.lossless
    assert resumed(net, ao.AdamW8bit, converted).isfinite().all()
    again, report = convert_state_dict(converted, "bitsandbytes", zeros="leave")
    assert report.lossless
    assert resumed(net, bnb.AdamW8bit, again).equal(resumed(net, bnb.AdamW8bit, adam.state_dict()))
    # 8-bit floats too, under a codebook up to 1.
    _, adam = trained(ao.AdamWFp8)
    report = convert_state_dict(adam.state_dict(), "bitsandbytes", zeros="leave")[1]
    assert report.states[0].became == "B256/e4m3@8s"
    assert report.states[0].how == "same codes"


def test_amsgrad_goes_between_torch_and_torchao() -> None:
    _, adam = trained(torch.optim.AdamW, amsgrad=True)
    converted, _ = convert_state_dict(adam.state_dict(), "torchao")
    largest = converted["state"][0]["max_exp_avg_sq"]
    assert (type(largest).__name__, largest.signed) == ("OptimState8bit", False)
    assert converted["param_groups"][0]["amsgrad"] is True
    back, report = convert_state_dict(converted, "torch", zeros="leave")
    assert report.lossless
    assert back["state"][0]["max_exp_avg_sq"].equal(largest.dequantize())
    assert back["param_groups"][0]["amsgrad"] is True


def test_a_file_of_torchao_is_read_by_a_process_that_has_not_imported_it(tmp_path: Path) -> None:
    _, adam = trained(ao.AdamW8bit)
    torch.save(adam.state_dict(), tmp_path / "in.pt")
    script = (
        "import sys; from qmaps.capture.conversion import convert_file; "
        "assert 'torchao' not in sys.modules;"
        "(r,) = convert_file('in.pt', 'out.pt', to='qmaps'); print(r.source)"
    )
    root = str(Path(qmaps.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r}); {script}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "torchao\n", done.stderr


def test_a_file_of_torchao_is_captured_decoded(tmp_path: Path) -> None:
    _, adam = trained(ao.AdamW8bit)
    torch.save(adam.state_dict(), tmp_path / "in.pt")
    states = capture.load(tmp_path / "in.pt")
    expected = adam.state_dict()["state"][0]["exp_avg_sq"].dequantize()
    assert states.tensor("0.weight", "exp_avg_sq").equal(expected)
    assert states.quantized() == ["0.weight"]  # the others are small
    recommend = ["recommend", str(tmp_path / "in.pt"), "--steps", "2", "--bits", "9", "--spec"]
    with pytest.raises(SystemExit), redirect_stdout(io.StringIO()) as out:
        main([*recommend, "B256/DE@8s + B256/DE-0@8u", "--out", str(tmp_path)])
    assert (
        "states of 1 of 4 parameters are quantized in the checkpoint already; errors are those of "
        "quantizing the decoded values again "
    ) in " ".join(out.getvalue().split())


def test_a_file_of_torchao_without_torchao(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, adam = trained(ao.AdamW8bit)
    torch.save(adam.state_dict(), tmp_path / "in.pt")
    for name in [name for name in sys.modules if name.split(".")[0] == "torchao"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(
        torch.serialization,
        "get_unsafe_globals_in_checkpoint",
        lambda path: ["torchao.optim.subclass_8bit.OptimState8bit"],
    )
    message = (
        f"{str(tmp_path / 'in.pt')!r}: states of torchao need its tensor classes (import of "
        'torchao.optim halted; None in sys.modules); install them with pip install "torchao>=0.18"'
    )
    with pytest.raises(CaptureError, match=f"^{re.escape(message)}$"):
        convert_file(tmp_path / "in.pt", tmp_path / "out.pt", to="qmaps")


def test_unsupported_rules_and_options_are_refused() -> None:
    lion = trained(qmaps.optim.Lion8bit)[1].state_dict()
    message = "the checkpoint has lion states; torchao supports only Adam and AdamW"
    with pytest.raises(BadValueError, match=f"^{re.escape(message)}$"):
        convert_state_dict(lion, "torchao")
    adam = trained(AdamW8bit, maximize=True)[1].state_dict()
    message = (
        "group 0 has maximize=True, which torchao does not support; only maximize=False can be "
        "converted"
    )
    with pytest.raises(BadValueError, match=f"^{re.escape(message)}$"):
        convert_state_dict(adam, "torchao")


def damage_scale(value: Tensor | str) -> Callable[[Any], None]:
    return lambda state: setattr(state, "scale", value)


@pytest.mark.parametrize(
    ("make", "damage", "reason"),
    [
        (ao.AdamW8bit, damage_scale("x"), "scale must be a float32 vector"),
        (ao.AdamW8bit, damage_scale(torch.ones(7)), "7 scales do not divide 5120 elements"),
        (ao.AdamW4bit, damage_scale(-torch.ones(40)), "a scale is negative, NaN or infinite"),
        (
            ao.AdamWFp8,
            damage_scale(torch.full((20,), float("nan"))),
            "a scale is negative, NaN or infinite",
        ),
        (ao.AdamWFp8, lambda s: s.codes.view(torch.uint8).fill_(127), "a code is NaN"),
        (
            ao.AdamW8bit,
            lambda s: setattr(s, "qmap", torch.zeros(3, 3)),
            "the codebook must be a float32 vector, got torch.float32 of shape (3, 3)",
        ),
        (
            ao.AdamW4bit,
            lambda s: setattr(s, "codes", s.codes[:1000]),
            "2000 codes of torch.uint8 do not fit a tensor of shape (80, 64)",
        ),
    ],
)
def test_damaged_states_are_refused(
    make: Callable[..., Any], damage: Callable[[Any], None], reason: str
) -> None:
    _, adam = trained(make)
    file = io.BytesIO()
    torch.save(adam.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    damage(saved["state"][0]["exp_avg"])
    message = f"the states of '0.weight' cannot be converted: {reason}"
    with pytest.raises(CaptureError, match=f"^{re.escape(message)}$"):
        convert_state_dict(saved, "qmaps")


def test_a_state_that_is_none_is_refused() -> None:
    _, optimizer = trained(ao.AdamW8bit)
    saved = optimizer.state_dict()
    saved["state"][0]["exp_avg"] = None
    with pytest.raises(BadValueError, match="expected a dense tensor, got a NoneType"):
        convert_state_dict(saved, to="qmaps")
