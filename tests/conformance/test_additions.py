"""An addition is one file: a copy of the package with six more files declares all of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import qmaps

ROOT = Path(__file__).parents[2]

MAP = '''
"""Cubes of evenly spaced numbers."""

from dataclasses import dataclass

import torch

from qmaps.maps.base import Map


@dataclass(frozen=True)
class Cubic(Map, name="cubic"):
    """Cubes of evenly spaced numbers."""

    def values(self):
        i = torch.linspace(-1 if self.signed else 0, 1, 2**self.bits, dtype=torch.float64)
        return i**3
'''
NORMALIZER = '''
"""Twice the scale."""

from dataclasses import dataclass

from qmaps.normalize.tensor import PerTensor


@dataclass(frozen=True)
class Whole(PerTensor, name="whole"):
    """One scale, by another name."""

    @property
    def spec(self):
        return "whole"
'''
METRIC = '''
"""Root of the mean squared error."""


def rms_error(x, decoded, codes, size):
    return float((x.double() - decoded.double()).square().mean().sqrt())


def from_sums(sums):
    return (sums.square / sums.numel) ** 0.5
'''
FIGURE = '''
"""Largest errors."""

from qmaps.figures.declare import Picture, figure
from qmaps.figures.style import axes, new


@figure(Picture("largest_errors", "The largest errors", "Of all.", frame="update_error"))
def largest_errors(frame):
    """A point for each quantizer."""
    drawn = new(5, 3)
    axes(drawn, 1, 1)[0][0].plot(frame["max_rel_error"], "o")
    return drawn
'''
FORMAT = '''
"""torch's layout with a mark."""

from qmaps.capture.conversion.formats.torch_ import Torch


class Marked(Torch):
    """What `marked` writes."""

    name = "marked"
    asked = 0

    def recognizes(self, state_dict):
        return "mark" in state_dict

    def write(self, state):
        return {**super().write(state), "mark": 1}
'''
OPTIMIZER = '''
"""Steps along an average."""

from qmaps.engines.step_scalars import StepScalar
from qmaps.optim.base import EightBit, QuantizedOptimizer
from qmaps.optim.rule import State


class Heavy(QuantizedOptimizer):
    """p = p - lr * average."""

    states = {"average": State(signed=True)}

    def __init__(self, params, lr=1e-3, **shared):
        super().__init__(params, {"lr": lr}, **shared)

    def step_scalars(self, group):
        return {"step_size": StepScalar(group["lr"])}

    def update(self, param, grad, states, scalars):
        states["average"].mul_(0.5).add_(grad * 0.5)
        param.sub_(states["average"] * scalars["step_size"])


class Heavy8bit(EightBit, Heavy):
    """`Heavy` in 8 bits."""
'''
FILES = {
    "maps/cubic.py": MAP,
    "normalize/whole.py": NORMALIZER,
    "metrics/rms_error.py": METRIC,
    "figures/largest_errors.py": FIGURE,
    "capture/conversion/formats/marked_.py": FORMAT,
    "optim/heavy.py": OPTIMIZER,
}
"""Each kind of addition: one file."""

SCRIPT = """
import contextlib, io, json, sys, traceback
from importlib.machinery import PathFinder

sys.meta_path.insert(0, PathFinder)  # an editable install would find the original
import torch

import qmaps
from docsite.kinds import optimizers
from qmaps import analyze, capture, figures, lab, maps, metrics, normalize, optim
from qmaps.capture.conversion import FORMATS, convert_state_dict
from qmaps.cli import main
from qmaps.lab import workloads
from qmaps.testing import check_map, check_normalizer, check_optimizer
from tests.figures.synthetic import FRAMES

torch.set_num_threads(1)
figures.save = lambda figure, path: path.write_bytes(b"a picture")  # rendering takes long
facts = {"package": qmaps.__file__}


def reported(section):
    try:
        facts[section.__name__] = section()
    except Exception:
        facts[section.__name__] = traceback.format_exc()


def command(*arguments):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main([*arguments, "--json"])
    return json.loads(out.getvalue())


@reported
def suite_of_maps():
    check_map(maps.Cubic)


@reported
def suite_of_normalizers():
    check_normalizer(normalize.Whole(), [maps.Cubic(4), maps.Linear(4), maps.DynamicExponent(4)])


@reported
def suite_of_optimizers():
    check_optimizer(optim.Heavy, lr=0.1)


@reported
def listed():
    return command("maps")


@reported
def run():
    pairs = ["B64/cubic@4s + whole/linear@4u"]
    page = lab.run(workloads.get("digits"), "run", steps=2, pairs=pairs, contenders=[])
    rows = qmaps.storage.files.read_frame(page.parent / "sweep" / "sweep.parquet")
    curves = qmaps.storage.files.read_frame(page.parent / "frames" / "map_curves.parquet")
    return {
        "page": page.read_text(),
        "quantizers": sorted(set(rows["quantizer"])),
        "measured": sorted(rows.columns[rows.notna().any()]),
        "curves": sorted(set(curves["map"])),
        "pictures": sorted(path.stem for path in (page.parent / "figures").iterdir()),
    }


@reported
def drawn():
    frames = FRAMES | {"largest_errors": FRAMES["update_error"]}
    made = {name: getattr(figures, name)(frames[name]) for name in figures.FIGURES}
    made["largest_errors"].draw_without_rendering()
    return list(made)


def trained(cls):
    layer = torch.nn.Linear(90, 80)
    optimizer = cls(layer.parameters())
    layer(torch.ones(4, 90)).square().mean().backward()
    optimizer.step()
    return optimizer.state_dict()


@reported
def converted():
    marked, _ = convert_state_dict(trained(torch.optim.Adam), "marked")
    torch.save(marked, "marked.pt")
    (back,) = command("convert", "marked.pt", "back.pt", "--to", "qmaps", "--states", "8bit")
    return {"formats": list(FORMATS), "source": back["source"]}


@reported
def optimized():
    saved = trained(optim.Heavy8bit)
    torch.save(saved, "heavy.pt")
    states = capture.load("heavy.pt")
    _, report = convert_state_dict(saved, "torch")
    refused = ""
    try:
        convert_state_dict(saved, "bitsandbytes")
    except qmaps.QmapsError as error:
        refused = str(error)
    return {
        "exported": optim.__all__,
        "swept": sorted(set(qmaps.sweep.run(states, ["B64/cubic@4s"])["state"])),
        "pages": [[cls.__name__ for cls in family] for family in optimizers.families()],
        "family": report.optimizer,
        "refused": refused,
    }


print(json.dumps(facts))
"""


@pytest.fixture(scope="session")
def facts(made_once: Callable[[str, Callable[[Path], None]], Path]) -> dict[str, Any]:
    """Output of one process that uses all the added files in the copy."""
    folder = made_once("additions", _add)
    loaded: dict[str, Any] = json.loads((folder / "facts.json").read_text())
    return loaded


def _add(folder: Path) -> None:
    package = folder / "qmaps"
    shutil.copytree(Path(qmaps.__file__).parent, package)
    native = find_spec("qmaps.engines.native._core")
    if native is not None and native.origin:  # an editable install has built it elsewhere
        shutil.copy2(native.origin, package / "engines" / "native")
    for name, text in FILES.items():
        assert not (package / name).exists()
        (package / name).write_text(text.lstrip())
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    facts = done.stdout.splitlines()[-1]
    assert Path(json.loads(facts)["package"]).is_relative_to(folder)
    (folder / "facts.json").write_text(facts)


pytestmark = [pytest.mark.slow, pytest.mark.slow]


def test_a_map_is_one_file(facts: dict[str, Any]) -> None:
    assert facts["suite_of_maps"] is None, facts["suite_of_maps"]
    assert "cubic" in [row["map"] for row in facts["listed"]["maps"]]
    assert "B64/cubic@4s" in facts["run"]["quantizers"], facts["run"]
    assert "cubic@8s" in facts["run"]["curves"]
    assert "B64/cubic@4s + whole/linear@4u" in facts["run"]["quantizers"]


def test_a_normalizer_is_one_file(facts: dict[str, Any]) -> None:
    assert facts["suite_of_normalizers"] is None, facts["suite_of_normalizers"]
    assert "whole" in facts["listed"]["normalizers"]
    assert "whole/linear@4u" in facts["run"]["quantizers"], facts["run"]
    assert "B64/cubic@4s + whole/linear@4u" in facts["run"]["quantizers"]


def test_a_metric_is_one_file(facts: dict[str, Any]) -> None:
    assert "rms_error" in facts["run"]["measured"], facts["run"]


def test_a_figure_is_one_file(facts: dict[str, Any]) -> None:
    assert "largest_errors" in facts["drawn"], facts["drawn"]
    assert "largest_errors" in facts["run"]["pictures"], facts["run"]
    assert len([name for name in facts["run"]["pictures"] if "narrow" not in name]) == 12
    page = facts["run"]["page"]
    assert page.index("The largest errors") > page.index("The maps")


def test_a_format_of_checkpoints_is_one_file(facts: dict[str, Any]) -> None:
    actual = facts["converted"]
    assert actual == {
        "formats": ["bitsandbytes", "marked", "torchao", "qmaps", "torch"], "source": "marked",
    }, actual  # fmt: skip


def test_an_optimizer_is_one_file(facts: dict[str, Any]) -> None:
    assert facts["suite_of_optimizers"] is None, facts["suite_of_optimizers"]
    actual = facts["optimized"]
    assert {"Heavy", "Heavy8bit"} <= set(actual["exported"]), actual
    assert actual["swept"] == ["average"]
    assert ["Heavy", "Heavy8bit"] in actual["pages"]
    assert actual["family"] == "heavy"
    assert actual["refused"].startswith(
        "the checkpoint has states of heavy; bitsandbytes has adam,"
    )
