"""The speed-up model: the paper's numbers from its inputs, and other hardware."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import qmaps
from qmaps.cli import run_app
from qmaps.errors import BadTypeError, BadValueError
from reproduction import speedup
from reproduction.speedup import Hardware, Job, Link, paper, predict
from reproduction.speedup.__main__ import app

pytestmark = pytest.mark.slow

SLOW = Hardware("slow", 1, 4, Link(1.0), Link(1.0), {"B2048/tree@8s": 2.0}, {"B2048/tree@8s": 1.0})


def call(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        run_app(app, shlex.split(command))
    return int(caught.value.code or 0), *capsys.readouterr()


def test_the_papers_tables_come_out() -> None:
    frame = speedup.tables()
    sizes = frame.groupby("table").size()
    assert dict(sizes) == {"1": 14, "3": 13, "4": 3, "6": 24, "7": 24, "6 from 5": 12, "A.1.3": 1}
    wanted = frame[frame["table"].isin(["1", "6", "7"])]
    assert wanted["agrees"].all(), wanted[~wanted["agrees"]]
    assert (wanted["off_percent"].abs() < 3.6).all()  # half a digit of "1.3" and its like
    four = frame[frame["row"] == "4 GPUs, 128"].set_index("messages")["model"]
    assert four["8-bit"] == pytest.approx(3.6732, abs=1e-4)
    assert frame.loc[frame["table"] == "A.1.3", "model"].item() == pytest.approx(3.7097, abs=1e-4)


def test_single_passes_follow_from_messages() -> None:
    frame = speedup.tables().query("table == '6 from 5'")
    worst, *smaller = sorted(frame["off_percent"].abs(), reverse=True)
    assert worst < 3.1  # 0.55, of which half a digit is 0.9 %
    assert max(smaller) < 1.5


def test_printed_latencies_do_not_make_table_6() -> None:
    row = next(row for row in paper.CLUSTER if row.sub_batch == 2048)
    link = Link(6.0, ((0.0, row.latency_ms[0]),))
    single = replace(paper.HARDWARE, network=link).message_ms(2048 * 9216 // 32, None)
    assert single == pytest.approx(38.1, abs=0.1)
    assert row.single[0] == "25.5"


def test_a_prediction_by_hand() -> None:
    job = Job("hand", conv_ms=8.0, fc_ms=2.0, cover_ms=1.0, features=1000, batch=100)
    # 100 samples, 250 numbers each, 4 messages of 100 kB at 1 GB/s.
    predicted = predict(job, SLOW, 100)
    assert (predicted.gpus, predicted.passes, predicted.forward_ms) == (4, 4, 8.0)
    assert predicted.single_ms == pytest.approx(0.4)
    assert predicted.full_ms == pytest.approx(0.4)  # hidden but for the first
    assert predicted.speedup == pytest.approx(4 * 10 / (8 + 8 + 0.4))
    # 1 MB a message: 4 ms, of which 3 stand out, three times.
    large = predict(job, SLOW, 400)
    # 100,000 numbers of each device
    assert large.single_ms == pytest.approx(4 * 100_000 * 4 / 1e6)
    assert large.full_ms == pytest.approx(3 * (large.single_ms - 1))
    q = qmaps.quantizer("B2048/tree@8s")
    coded = predict(job, SLOW, 400, q)
    sent = 4 * q.nbytes((100_000,)) / 1e6
    assert coded.single_ms == pytest.approx(sent + 0.1 * (2 + 3 * 1))
    assert coded.speedup > large.speedup


def test_fewer_bits_never_lose_where_coding_is_free() -> None:
    quantizers = {spec: qmaps.quantizer(spec) for spec in ("B2048/tree@8s", "B2048/tree@4s")}
    frame = speedup.curves(paper.ALEXNET, paper.HARDWARE, {"32-bit": None} | quantizers)
    wide = frame.pivot(index=["panel", "gpus", "sub_batch"], columns="quantizer", values="speedup")
    assert list(frame["quantizer"].unique()) == ["32-bit", *quantizers]
    assert sorted(frame["gpus"].unique()) == [1, 2, 3, 6, 12, 24, 48, 96]
    turned = wide.loc["sub-batch"]
    assert (turned["B2048/tree@4s"] >= turned["B2048/tree@8s"]).all()
    assert (turned["B2048/tree@8s"] > turned["32-bit"]).all()
    single = frame[frame["gpus"] == 1]
    assert single["speedup"].tolist() == [1.0] * 3


def test_hardware_in_a_file(tmp_path: Path, capsys) -> None:
    file = tmp_path / "mine.json"
    job = {"name": "net", "conv_ms": 9, "fc_ms": 1, "cover_ms": 0.2, "features": 64}
    file.write_text(json.dumps({"hardware": SLOW.to_json(), "job": job}))
    command = f"--hardware {file} --spec B2048/tree@8s --out {tmp_path / 'out'} --json"
    code, out, err = call(command, capsys)
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert (said["hardware"], said["job"]) == ("slow", "net")
    best = {row["quantizer"]: row["speedup"] for row in said["best"]}
    assert best.keys() == {"32-bit", "B2048/tree@8s"}
    assert 1 < best["32-bit"] < best["B2048/tree@8s"] < 4
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "tables.md", "curves.csv", "speedup.png", "hardware.json",
    }  # fmt: skip
    curves = pd.read_csv(tmp_path / "out" / "curves.csv")
    assert curves["speedup"].max() == pytest.approx(best["B2048/tree@8s"], rel=1e-5)
    # What it wrote is read again.
    again = f"--hardware {tmp_path / 'out' / 'hardware.json'} --out {tmp_path / 'two'}"
    code, out, _ = call(again, capsys)
    assert code == 0
    assert "slow: 4 devices" in out
    page = (tmp_path / "out" / "tables.md").read_text()
    assert "slow, 4 devices in all." in page
    part = page[page.index("## Hardware") : page.index("## Table 1")]
    times = " | ".join(f"{SLOW.network.ms(1000 * size):.3g}" for size in (1, 16, 256, 4096))
    assert f"| between nodes | {SLOW.network.gb_per_s:.3g} | {times} |" in part
    assert page.count("\n| ") - part.count("\n| ") == len(speedup.tables()) + 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "hardware='FILE' must have the key 'hardware' and may have the key 'job'"),
        ('{"hardware": {}, "x": 1}', "hardware='FILE' has the key 'x'; allowed are hardware, job"),
        ('{"hardware": {}}', "hardware lacks 'name'"),
        (
            '{"hardware": {"gpu": 1}}',
            "hardware has the key 'gpu'; allowed are name, nodes, gpus_per_node, network, "
            "local, compress_ns, decompress_ns",
        ),
    ],
)
def test_bad_files(text: str, message: str, tmp_path: Path, capsys) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)
    code, _, err = call(f"--hardware {file} --out {tmp_path}", capsys)
    assert (code, err) == (2, f"error: {message.replace('FILE', str(file))}\n")


def test_an_unwritable_folder_is_refused_before_any_work(capsys, monkeypatch) -> None:
    monkeypatch.setattr(speedup, "calibrate", lambda: pytest.fail("it works already"))
    said = "out='/proc/none' cannot be written (No such file or directory); give a writable folder"
    assert call("--calibrate --out /proc/none", capsys) == (2, "", f"error: {said}\n")


def test_bad_values() -> None:
    cases = {
        lambda: Link(0.0): "gb_per_s=0.0 must be a finite number above 0",
        lambda: Link(1.0, ((2.0, 0.1), (1.0, 0.1))): (
            "latency_ms=((2.0, 0.1), (1.0, 0.1)) must be pairs of size and latency with "
            "ascending sizes"
        ),
        lambda: replace(SLOW, nodes=0): "nodes=0 must be at least 1",
        lambda: replace(SLOW, compress_ns={"B64/DE@8s": -1}): (
            "compress_ns['B64/DE@8s']=-1 must be a finite number of at least 0"
        ),
        lambda: predict(paper.ALEXNET, SLOW, 0): "sub_batch=0 must be at least 1",
        lambda: Job("j", 1, 0, 1, 1): "fc_ms=0 must be a finite number above 0",
        lambda: Hardware.from_json({**SLOW.to_json(), "local": {}}): "local lacks 'gb_per_s'",
    }
    for make, message in cases.items():
        with pytest.raises(BadValueError) as caught:
            make()
        assert str(caught.value) == message
    with pytest.raises(BadTypeError) as wrong:
        replace(SLOW, nodes=1.5)
    assert str(wrong.value) == "nodes=1.5 must be an int"


def test_calibration_measures_two_processes() -> None:
    machine = speedup.calibrate(["B2048/DE@8s"], nodes=2, gpus_per_node=1, numbers=4096, rounds=2)
    assert (machine.nodes, machine.gpus_per_node) == (2, 1)
    assert machine.compress_ns["B2048/DE@8s"] > 0
    assert machine.decompress_ns["B2048/DE@8s"] > 0
    assert [size for size, _ in machine.network.latency_ms] == [s / 1e3 for s in (
        1000, 4000, 16000, 64000, 256000, 1024000, 4096000, 16384000)]  # fmt: skip
    assert machine.network.gb_per_s > 0
    assert Hardware.from_json(json.loads(json.dumps(machine.to_json()))) == machine


def test_a_failed_calibration_has_a_reason(monkeypatch) -> None:
    monkeypatch.setattr(speedup.calibrate.__globals__["sys"], "executable", "/bin/false")
    with pytest.raises(BadValueError) as caught:
        speedup.calibrate()
    assert str(caught.value) == "the calibration failed; the last line of its process was: nothing"
