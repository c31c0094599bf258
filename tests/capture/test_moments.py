"""Adam's moments under other names."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch
from torch import Tensor

import qmaps
from qmaps.analyze import replay
from qmaps.capture import CapturedStates, StateRecorder, load
from qmaps.cli import main
from qmaps.errors import BadTypeError, BadValueError, CaptureError
from tests.helpers import Pickling

FIRST, SECOND = torch.randn(80, 80, generator=torch.Generator().manual_seed(0)), torch.rand(80, 80)
SPEC = "B256/DE@8s + B256/DE-0@8u"


def states(**tensors: Tensor) -> CapturedStates:
    return CapturedStates.from_tensors({"w": tensors}, step=9)


def adam() -> CapturedStates:
    return states(exp_avg=FIRST, exp_avg_sq=SECOND)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("exp_avg", "exp_avg_var"),
        ("exp_avg", "exp_hessian_diag_sq"),
        ("grad_ma", "variance_ma"),
        ("m", "v"),
        ("m", "variance"),
        ("m_avg", "v_avg"),
        ("momentum", "fim"),
        ("0.update_by_adam_exp_avg_0", "0.update_by_adam_exp_avg_sq_0"),
        ("0.scale_by_heavy_soap_exp_avg_2", "0.scale_by_heavy_soap_exp_avg_sq_2"),
        ("0.scale_by_soap_ademamix_exp_avg_fast_2", "0.scale_by_soap_ademamix_exp_avg_sq_2"),
    ],
)
def test_known_names(first: str, second: str) -> None:
    named = states(other=torch.ones(3), **{first: FIRST, second: SECOND})
    renamed = named.as_adam()
    assert renamed.states("w") == ["other", "exp_avg", "exp_avg_sq"]
    assert renamed.tensor("w", "exp_avg").equal(FIRST)
    assert renamed.aliases == {
        moment: [original]
        for moment, original in (("exp_avg", first), ("exp_avg_sq", second))
        if moment != original
    }
    expected = qmaps.sweep.run(adam(), SPEC)
    frame = qmaps.sweep.run(named, SPEC)
    assert frame.equals(expected)


def test_replays_and_recommendations() -> None:
    named = states(momentum=FIRST, exp_avg_var=SECOND)
    moments = {"exp_avg": "momentum", "exp_avg_sq": "*_var"}
    ours = replay.run(named, SPEC, steps=3, moments=moments)
    assert ours.equals(replay.run(adam(), SPEC, steps=3))
    answer = qmaps.recommend(named, bits=9, candidates=[SPEC], steps=3, moments=moments)
    assert answer.tensors.equals(
        qmaps.recommend(adam(), bits=9, candidates=[SPEC], steps=3).tensors
    )
    with pytest.raises(CaptureError, match=r"names other ones$"):
        qmaps.recommend(named)


def test_states_with_names_of_adam_stay() -> None:
    ambiguous = states(exp_avg=FIRST, exp_avg_sq=SECOND, m=FIRST, v=SECOND)
    assert ambiguous.as_adam() is ambiguous
    for tensors in (
        {"m": FIRST, "v": torch.ones(80, 1)},  # of other shapes
        {"m": torch.tensor(1.0), "v": torch.tensor(1.0)},
        {"m": FIRST.int(), "v": SECOND},  # codes
        {"0.x_exp_avg_0": FIRST, "1.x_exp_avg_0": FIRST, "0.x_exp_avg_sq_0": SECOND},
        {"momentum_buffer": FIRST},
    ):
        alone = states(**tensors)
        assert alone.as_adam() is alone


def test_another_state_of_the_name() -> None:
    slow = states(exp_avg=FIRST, exp_avg_slow=2 * FIRST, exp_avg_sq=SECOND)
    renamed = slow.as_adam({"exp_avg": "exp_avg_slow"})
    assert renamed.states("w") == ["own.exp_avg", "exp_avg", "exp_avg_sq"]
    assert renamed.tensor("w", "exp_avg").equal(2 * FIRST)
    assert renamed.tensor("w", "own.exp_avg").equal(FIRST)
    assert slow.states("w") == ["exp_avg", "exp_avg_slow", "exp_avg_sq"]


def test_parameters_with_other_states_stay() -> None:
    mixed = CapturedStates.from_tensors(
        {"w": {"momentum": FIRST, "fim": SECOND}, "b": {"momentum_buffer": FIRST}}
    )
    renamed = mixed.as_adam({"exp_avg": "mom*m", "exp_avg_sq": "fim"})
    assert renamed.states("b") == ["momentum_buffer"]
    assert renamed.with_moments() == ["w"]


def test_refusals() -> None:
    two = states(m=FIRST, v=SECOND)
    for moments, kind, message in (
        ("m", BadTypeError, "moments='m' must be a dict from exp_avg and exp_avg_sq to names"),
        ({"first": "m"}, BadValueError, "moments has 'first'; allowed are exp_avg, exp_avg_sq"),
        ({"exp_avg": 3}, BadTypeError, "moments['exp_avg']=3 must be the name of a state"),
        (
            {"exp_avg": "m", "exp_avg_sq": "m"},
            BadValueError,
            "moments={'exp_avg': 'm', 'exp_avg_sq': 'm'} must name two states, not one for both",
        ),
        (
            {"exp_avg": "?"},
            BadValueError,
            "moments['exp_avg']='?' matches m, v of parameter 'w'; it must match one",
        ),
        (
            {"exp_avg": "m", "exp_avg_sq": "m*"},
            BadValueError,
            "moments={'exp_avg': 'm', 'exp_avg_sq': 'm*'} matches m of parameter 'w' twice",
        ),
        (
            {"exp_avg": "momentum"},
            BadValueError,
            "moments['exp_avg']='momentum' matches no state in 'memory'; its states are m, v",
        ),
        (
            {"exp_avg": "m", "exp_avg_sq": "w"},
            BadValueError,
            "moments['exp_avg_sq']='w' matches no state in 'memory'; its states are m, v",
        ),
    ):
        with pytest.raises(kind) as error:
            two.as_adam(moments)  # type: ignore[arg-type]
        assert str(error.value) == message


def test_betas_by_two_names(tmp_path: Path) -> None:
    param = torch.nn.Parameter(torch.zeros(80, 80))
    group = {"params": [param], "beta1": 0.5, "beta2": 0.75}
    optimizer = torch.optim.SGD([group], lr=0)
    optimizer.state[param] = {"exp_avg": FIRST, "exp_avg_sq": SECOND, "step": torch.tensor(4)}
    with StateRecorder(optimizer, tmp_path) as recorder:
        recorder.record()
    assert replay.source.betas_of(load(tmp_path), "group0.param0") == (0.5, 0.75)


def test_workers_and_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    param = torch.nn.Parameter(torch.zeros(80, 80))
    optimizer = torch.optim.SGD([param], lr=0)
    optimizer.state[param] = {"momentum": FIRST, "exp_avg_var": SECOND, "step": torch.tensor(4)}
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    moments = {"exp_avg": "momentum", "exp_avg_sq": "exp_avg_var"}
    path = tmp_path / "optimizer.pt"
    frame = qmaps.sweep.run(path, SPEC, moments=moments, out=tmp_path / "sweep")
    assert set(frame["state"]) == {"exp_avg", "exp_avg_sq", "update"}
    with pytest.raises(qmaps.errors.OutputError):  # the same states under other names
        qmaps.sweep.run(
            path, SPEC, moments={**moments, "exp_avg": "momen*"}, out=tmp_path / "sweep"
        )
    with Pickling(1) as executor:
        assert qmaps.sweep.run(path, SPEC, moments=moments, executor=executor).equals(frame)
    command = f"sweep {path} --spec '{SPEC}' --first momentum --second exp_avg_var"
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(f"{command} --out {tmp_path / 'run'}"))
    assert not ended.value.code
    printed = capsys.readouterr().out
    assert "exp_avg is momentum of the optimizer" in printed
    assert "exp_avg_sq is exp_avg_var of the optimizer" in printed
