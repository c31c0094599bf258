"""The rounding of a quantizer: its specs, and values allowed for the option."""

import dataclasses
import pickle
from pathlib import Path

import pytest
import torch

import qmaps
from qmaps.algebra.rounding import Rounding
from qmaps.algebra.saved import from_plain, to_plain
from qmaps.errors import BadTypeError, SpecError
from qmaps.maps import Codebook, Linear
from qmaps.normalize import BlockWise
from qmaps.storage import tensors as files

NEAREST = BlockWise(128) / Linear(4)


def test_a_quantizer_is_stochastic_by_its_rounding() -> None:
    normalizer, map_ = NEAREST.normalizer, NEAREST.map
    stochastic = qmaps.Quantizer(normalizer, map_, rounding=Rounding.STOCHASTIC)
    assert stochastic.stochastic
    assert not NEAREST.stochastic
    assert dataclasses.replace(NEAREST, rounding=Rounding.STOCHASTIC) == stochastic
    # What is not named stays.
    assert dataclasses.replace(stochastic, map=Linear(8)).spec == "B128/linear@8s+sr"


@pytest.mark.parametrize("rounding", Rounding)
def test_a_spec_ends_with_its_rounding(rounding: Rounding) -> None:
    q = dataclasses.replace(NEAREST, rounding=rounding)
    assert q.spec == "B128/linear@4s" + rounding.value
    assert qmaps.quantizer(q.spec.upper()) == q


@pytest.mark.parametrize("rounding", Rounding)
def test_files_keep_the_rounding_of_a_codebook(rounding: Rounding) -> None:
    codebook = Codebook([-1, -0.5, 0, 0.5, 1], label="mine")
    q = dataclasses.replace(BlockWise(8) / codebook, rounding=rounding)
    t = q.quantize(torch.linspace(-1, 1, 24))
    assert from_plain(to_plain(t)).quantizer.rounding is rounding


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"rounding": "+sr"},
            "rounding='+sr' must be a qmaps.Rounding, such as Rounding.STOCHASTIC",
        ),
    ],
)
def test_bad_roundings(options: dict[str, str], message: str) -> None:
    with pytest.raises(BadTypeError) as caught:
        qmaps.Quantizer(NEAREST.normalizer, NEAREST.map, **options)
    assert str(caught.value) == message


@pytest.mark.parametrize("rounding", [Rounding.STOCHASTIC, Rounding.NEAREST])
def test_pickles_of_version_0_2(rounding: Rounding) -> None:
    """They hold `stochastic` instead of `rounding`."""
    q = dataclasses.replace(NEAREST, rounding=rounding)
    fields = {name: value for name, value in vars(q).items() if name != "rounding"}
    loaded = qmaps.Quantizer.__new__(qmaps.Quantizer)
    loaded.__setstate__({**fields, "stochastic": q.stochastic})
    assert loaded == q
    assert pickle.loads(pickle.dumps(q)) == q


GONE = "the rounding {} was removed in version 0.4; use +qsr"


@pytest.mark.parametrize("end", ["+dither", "+ef4", "+ef8"])
def test_removed_roundings_are_named(end: str) -> None:
    for spec in (f"B64/linear@4s{end}", f"B64/DE@4s{end.upper()}", f"bf16{end}"):
        with pytest.raises(SpecError) as caught:
            qmaps.quantizer(f" {spec}")
        assert str(caught.value) == f"spec=' {spec}': {GONE.format(end)}"
    inner = f"B64/DE@4s{end}"
    with pytest.raises(SpecError) as caught:
        qmaps.quantizer(f"lowrank4(B64/DE@8s)+{inner}")
    assert str(caught.value) == f"spec={inner!r}: {GONE.format(end)}"
    with pytest.raises(SpecError) as caught:
        Rounding(end)
    assert str(caught.value) == GONE.format(end)


def test_files_of_version_0_3_with_a_removed_rounding_are_refused(tmp_path: Path) -> None:
    """Reading does not look at `key` and `beside`, the fields of removed roundings."""
    quantizer = BlockWise(64) / Codebook([-1, -0.5, 0, 0.5, 1], label="mine")
    plain = to_plain(NEAREST.quantize(torch.ones(64)))
    labelled = to_plain(quantizer.quantize(torch.ones(64)))
    dithered = {**plain, "spec": "B128/linear@4s+dither", "key": {"seed": 3, "runs": [8, 32]}}
    fed = {**labelled, "spec": "B64/mine@3s+ef4", "map": {**labelled["map"], "rounding": "+ef4"},
           "beside": [{"packed": plain["packed"], "scales": plain["scales"]}]}  # fmt: skip
    for saved, message in (
        (dithered, f"spec='B128/linear@4s+dither': {GONE.format('+dither')}"),
        (fed, GONE.format("+ef4")),
    ):
        files.write({"tensor": saved}, tmp_path / "t.safetensors")
        for read in (lambda: qmaps.load(tmp_path / "t.safetensors"), lambda: from_plain(saved)):  # noqa: B023
            with pytest.raises(SpecError) as caught:
                read()
            assert str(caught.value) == message
