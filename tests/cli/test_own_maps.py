"""``--load`` and ``--codebook``, and checkpoints with maps from packages not installed."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch.distributed import checkpoint as dcp

from qmaps import maps, normalize
from qmaps.algebra import own_maps
from qmaps.errors import NOT_INSTALLED
from qmaps.optim import AdamW
from tests.algebra.test_own_maps import MODULE


@pytest.fixture(autouse=True)
def files(place: Path) -> Iterator[None]:
    """``mymaps.py`` with the map ``own-cubic``, and ``mine.json``, a codebook of 3 bits."""
    (place / "mymaps.py").write_text(MODULE)
    values = [-1, -0.5, -0.1, 0, 0.1, 0.5, 1]
    (place / "mine.json").write_text(json.dumps({"label": "mine", "values": values}))
    registered, normalizers, path = dict(maps.REGISTRY), list(normalize.REGISTRY), list(sys.path)
    yield
    forget(registered, normalizers)
    sys.path[:] = path
    shutil.rmtree(place / "runs", ignore_errors=True)


def forget(registered: dict, normalizers: list) -> None:
    maps.REGISTRY.clear()
    maps.REGISTRY.update(registered)
    normalize.REGISTRY[:] = normalizers
    own_maps.LOADED.clear()


PAIR = "B128/mine@3s + own-whole/own-cubic@4u"
OWN = "--load mymaps.py --codebook mine.json"


def test_a_sweep_of_own_maps(call, place: Path) -> None:
    code, out, err = call(f"sweep states --spec '{PAIR}' --spec B128/three@2s {OWN} --json")
    assert (code, err) == (0, "")
    assert {row["quantizer"] for row in json.loads(out)} >= {PAIR, "B128/three@2s"}
    # Other values under the same name are another sweep.
    (place / "mine.json").write_text('{"label": "mine", "values": [-1, -0.5, 0, 0.5, 1]}')
    assert call(f"sweep states --spec '{PAIR}' --spec B128/three@2s {OWN}") == (
        2, "", "error: out='runs/sweep/sweep' holds a sweep of other specs or states; delete the "
        "folder or give another one\n",
    )  # fmt: skip


def test_values_of_a_loaded_map_are_part_of_a_sweep(call, place: Path) -> None:
    registered, normalizers = dict(maps.REGISTRY), list(normalize.REGISTRY)
    command = "sweep states --spec B128/own-cubic@4u --load mymaps.py"
    assert call(command)[0] == 0
    forget(registered, normalizers)
    (place / "mymaps.py").write_text(MODULE.replace("i**3", "i**5"))
    assert call(command)[0] == 2


def test_the_environment_names_files(call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QMAPS_LOAD", "mymaps.py")
    monkeypatch.setenv("QMAPS_CODEBOOK", "mine.json")
    code, out, _ = call(f"recommend states --spec '{PAIR}' --steps 2 --json")
    assert code == 0
    assert [row["quantizer"] for row in json.loads(out)["pairs"]] == [PAIR]
    code, out, _ = call(f"replay states --spec '{PAIR}' --steps 2 --json")
    assert [row["quantizer"] for row in json.loads(out)] == [PAIR]


@pytest.mark.slow
def test_workers_load_the_files(call) -> None:
    code, out, err = call(f"sweep states --spec '{PAIR}' {OWN} --workers 2 --json")
    assert (code, err) == (0, "")
    assert PAIR in {row["quantizer"] for row in json.loads(out)}


@pytest.mark.slow
def test_figures_of_own_pairs_and_presets(call, place: Path) -> None:
    out = place / "runs" / "own"
    assert call(f"figures states --spec '{PAIR}' --spec 2bit {OWN} --out {out}")[0] == 0
    frame = pd.read_parquet(out / "frames" / "update_error.parquet")
    assert PAIR in set(frame["quantizer"])
    assert "2bit" in set(frame["preset"])
    histogram = pd.read_parquet(out / "frames" / "histogram_second.parquet")
    assert "own-whole/own-cubic@4u" in set(histogram["quantizer"])


BAD = {
    "sweep states --load none.py": "load='none.py' cannot be read (No such file or directory)",
    "replay states --load names.txt": "load='names.txt' is no Python (invalid syntax, line 1)",
    "recommend states --codebook none.json": "codebook='none.json': it cannot be read (No such "
    "file or directory)",
    "lint optimizer.pt --codebook names.txt": "codebook='names.txt': path='names.txt' must end in "
    ".json, .yaml or .yml",
    "figures --spec 4bit": "spec='4bit' needs states to quantize",
    "sweep states --spec B128/mine@4s --codebook mine.json": "spec='B128/mine@4s': the codebook "
    "given is mine@3s, which has another width or sign",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_files_are_one_line(command: str, call, place: Path) -> None:
    (place / "names.txt").write_text("layers 0\n")
    assert call(command) == (2, "", f"error: {BAD[command]}\n")


def test_lint_warns_of_a_map_that_is_not_installed(call, place: Path) -> None:
    registered, normalizers = dict(maps.REGISTRY), list(normalize.REGISTRY)
    own_maps.load_files([place / "mymaps.py"])
    net = torch.nn.Sequential(torch.nn.Linear(80, 64), torch.nn.Linear(64, 80))
    optimizer = AdamW(
        net.named_parameters(),
        state_quantizers={"exp_avg": "B128/own-cubic@4s", "exp_avg_sq": "B128/DE-0@8u"},
    )
    net(torch.randn(4, 80)).square().mean().backward()
    optimizer.step()
    state_dict = optimizer.state_dict()
    torch.save(state_dict, place / "own.pt")
    dcp.save({"optimizer": state_dict}, checkpoint_id=place / "own-dcp", no_dist=True)
    forget(registered, normalizers)
    unknown = "spec='B128/own-cubic@4s': unknown map 'own-cubic'"
    for source in ("own.pt", "own-dcp"):
        code, out, _ = call(f"lint {source} --json")
        (finding,) = [row for row in json.loads(out) if row["level"] != "note"]
        assert (code, finding["check"], finding["level"]) == (0, "not-installed", "warning")
        assert (finding["state"], finding["count"]) == ("exp_avg", 2)
        assert finding["message"] == f"{unknown}; {NOT_INSTALLED}"
        code, _, err = call(f"sweep {source}")
        assert code == 2
        assert " cannot be read" in err
        assert err.endswith(f"{unknown}; {NOT_INSTALLED}\n")
        code, out, _ = call(f"lint {source} --load mymaps.py --json")
        assert "not-installed" not in {row["check"] for row in json.loads(out)}
        forget(registered, normalizers)
