"""The harness of the benchmarks; speeds are not tested."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import machine, moving_average
from benchmarks.case import OURS, Case, Options, Setup, UnavailableError, row
from benchmarks.limits import Needs
from benchmarks.machine import processor_folder
from benchmarks.memory import state_bytes
from benchmarks.neighbours import Neighbours
from benchmarks.process import peak
from benchmarks.table import table
from benchmarks.timing import interleaved, quartiles, ratio

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_methods_take_turns_and_warm_ups_are_not_counted() -> None:
    order: list[str] = []
    refreshed: list[int] = []
    works = {name: (lambda name=name: order.append(name)) for name in "abc"}
    seconds, failed = interleaved(works, rounds=2, refresh=refreshed.append)
    assert order == [*"abc"] * 4
    assert refreshed == [0, 1, 2, 3]
    assert {name: len(times) for name, times in seconds.items()} == {"a": 2, "b": 2, "c": 2}
    assert failed == {}


def test_a_slow_method_takes_fewer_rounds_but_two_at_least() -> None:
    seconds, _ = interleaved({"a": lambda: None}, rounds=5, budget=0.0)
    assert len(seconds["a"]) == 2


def test_a_method_that_fails_does_not_stop_the_others() -> None:
    def fails() -> None:
        raise ValueError("no such kernel")

    seconds, failed = interleaved({"a": fails, "b": lambda: None}, rounds=3)
    assert list(seconds) == ["b"]
    assert len(seconds["b"]) == 3
    assert str(failed["a"]) == "no such kernel"


def test_a_study_is_run_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[object] = []
    monkeypatch.setattr(command, "losses", lambda options: called.append(options) or 0)
    monkeypatch.setattr(moving_average, "main", lambda options: called.append(options) or 0)
    assert command.main(["parity", "--workers", "1"]) == 0
    assert command.main(["moving-average"]) == 0
    assert called == [["parity", "--workers", "1"], ()]
    assert command.main(["pariti"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: study='pariti' is unknown; allowed are ages, checkpoints, ")
    assert said.endswith("; nearest match: parity\n")


def test_quartiles_and_ratios() -> None:
    assert quartiles([3.0, 1.0, 2.0]) == {"median": 2.0, "q1": 1.5, "q3": 2.5}
    assert quartiles([4.0]) == {"median": 4.0, "q1": 4.0, "q3": 4.0}
    # A third round of ours has no counterpart.
    assert ratio([6.0, 8.0], [2.0, 2.0, 100.0]) == {"ratio": 3.5, "q1": 3.25, "q3": 3.75}


def test_floors() -> None:
    result = row("a", "ns", {OURS: [1.0], "fast": [1.0], "slow": [9.0]}, {"fast": 2, "slow": 2}, {})
    assert result["reached"] == {"fast": False, "slow": True}
    assert row("a", "ns", {"slow": [9.0]}, {"slow": 2}, {OURS: "not built"})["ratios"] == {}


def case(ours, peer) -> Case:
    def make(scale: float) -> Setup:
        return Setup(
            {OURS: ours, "peer": peer},
            elements=round(1000 * scale),
            nbytes={OURS: 4.0},
            needs={OURS: Needs(written=1.0, divisions=1.0)},
            check=lambda: {"share of equal codes": 1.0},
        )

    return Case("a case", make, {"peer": 0.0}, note="what to know", goal=0.75)


def missing() -> None:
    raise UnavailableError("not installed")


def wrong() -> None:
    raise ValueError("/somewhere/on/this/machine/kernel.so is missing")


@pytest.mark.parametrize(
    ("peer", "reason"),
    [(missing, "not installed"), (wrong, "ValueError: kernel.so is missing")],
)
def test_a_peer_that_cannot_run_is_named_with_its_reason(peer, reason: str) -> None:
    (result,) = case(lambda: lambda: None, peer).measure(Options(1.0, 2))
    assert result["skipped"] == {"peer": reason}
    assert result["ratios"] == {}
    assert result["elements"] == 1000
    assert result["checks"] == {"share of equal codes": 1.0}


def test_a_failure_of_ours_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    results = command.measure([case(wrong, lambda: lambda: None)], Options(0.001, 1))
    assert results["cases"][0]["failed"]
    assert "kernel.so is missing" in capsys.readouterr().err


def test_results_become_json_a_table_and_a_picture(tmp_path: Path) -> None:
    nothing = lambda: lambda: sum(range(100))  # noqa: E731
    results = {
        "about": command.about(["--rounds", "2"])
        | {"scale": 0.001, "rounds": 2, "budget": 10.0, "seconds": 1.0},
        **command.measure([case(nothing, nothing), case(nothing, missing)], Options(0.001, 2)),
    }
    command.write(results, tmp_path)
    assert json.loads((tmp_path / "cpu.json").read_text())["cases"] == results["cases"]
    text = (tmp_path / "cpu.md").read_text()
    assert text.startswith(table(results))
    assert "Made with qmaps" in text
    assert "| a case | peer |" in text
    assert "reached" in text
    assert "not measured: not installed" in text
    assert "share of equal codes: 1" in text
    assert "what to know" in text
    assert "scaled by 0.001" in text
    assert "| roofline |" in text
    assert "shuffles" in text
    assert (tmp_path / "cpu.png").read_bytes().startswith(b"\x89PNG")


def test_cases_are_chosen_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list", "--case", "quantize b256", "--case", "subnormals"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert "quantize B256/DE@8s" in names
    assert "AdamW 8-bit on subnormals, four matrices" in names
    assert not any("Lion" in name for name in names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--case", "quantise"], "--case='quantise' fits no case"),
        (["--scale", "0"], "'0' must be a number above 0"),
        (["--rounds", "none"], "'none' must be a whole number of at least 1"),
    ],
)
def test_bad_options(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert message in capsys.readouterr().err


def test_neighbours_see_others_but_not_this_process() -> None:
    with Neighbours() as neighbours:
        pass
    assert neighbours.share is None or 0 <= neighbours.share <= 1


def test_memory_of_states_and_of_a_step() -> None:
    import torch

    import qmaps

    shared = torch.zeros(100)
    quantized = qmaps.quantizer("B64/DE@8s").quantize(torch.randn(1000))
    states = [{"step": shared[0], "m": quantized}, {"step": shared[1]}]
    assert state_bytes(states) == 400 + quantized.nbytes
    # Above 32 MiB glibc always takes new memory, whatever other tests have given back.
    risen = peak(lambda: torch.ones(16 << 20))
    assert risen is None or 62 < risen < 72


def test_the_command(tmp_path: Path) -> None:
    arguments = ["--scale", "0.0005", "--rounds", "1", "--case", "any codebook"]
    assert command.main([*arguments, "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "cpu.json").read_text())
    (result,) = results["cases"]
    assert result["name"] == "AdamW 8-bit any codebook, four matrices"
    assert result["checks"] == {"share of parameters equal to the reference's after 3 steps": 1.0}
    assert set(result["ratios"]) == {"torch fused", "torch foreach", "torch for-loop"}


def test_the_model_of_a_processor(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n")
    assert machine.processor(cpuinfo) == "AMD EPYC"
    assert machine.model(cpuinfo) == "family 25, model 17"
    cpuinfo.write_text("processor\t: 0\nCPU part\t: 0xd0c\n")
    assert machine.model(cpuinfo) is None


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("AMD EPYC", "amd-epyc"),
        ("Intel(R) Xeon(R) Processor", "intel-xeon"),
        ("Intel(R) Core(TM) i7-1185G7 CPU @ 3.00GHz", "intel-core-i7-1185g7-3-00ghz"),
        ("", "unknown"),
    ],
)
def test_each_processor_has_a_folder_of_its_own(name: str, folder: str) -> None:
    assert processor_folder(name) == folder
