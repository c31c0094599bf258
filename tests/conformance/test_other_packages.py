"""A package installed beside qmaps adds parts of its own, by its metadata alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

import qmaps
from qmaps import metrics
from qmaps.errors import BadValueError
from qmaps.figures import Picture, figure
from qmaps.maps.base import Map
from qmaps.normalize import Normalizer
from qmaps.normalize.scale_format import ScaleFormat
from qmaps.registry import load_entry_points

MODULE = """
from dataclasses import dataclass

import torch

from qmaps.maps.base import Map
from qmaps.normalize.tensor import PerTensor
from qmaps.optim import SGD


@dataclass(frozen=True)
class Cubic(Map, name="cubic"):
    'Cubes of evenly spaced numbers.'

    def values(self):
        i = torch.linspace(-1 if self.signed else 0, 1, 2**self.bits, dtype=torch.float64)
        return i**3


@dataclass(frozen=True)
class Whole(PerTensor, name="whole"):
    'One scale, by another name.'

    @property
    def spec(self):
        return "whole"


def offset(x, decoded, codes, size):
    'The mean error.'
    return float((decoded.double() - x.double()).mean())


class SignedSGD(SGD):
    'SGD by another name.'
"""
FIGURES = """
from matplotlib.figure import Figure

from qmaps.figures import Picture, figure


@figure(Picture("dots", "Dots", "Of all.", frame="update_error"))
def dots(frame):
    'One dot.'
    return Figure(figsize=(1, 1))
"""
FORMATS = """
from qmaps.capture.conversion.formats.torch_ import Torch


class Marked(Torch):
    'torch with a mark.'

    name = "marked"
    asked = 0

    def recognizes(self, state_dict):
        return "mark" in state_dict

    def write(self, state):
        return {**super().write(state), "mark": 1}
"""

METADATA = "Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n"
ENTRY_POINTS = """
[qmaps.maps]
cubic = brought:Cubic
nothing = brought:Missing

[qmaps.normalizers]
whole = brought:Whole

[qmaps.metrics]
offset = brought:offset

[qmaps.optimizers]
SignedSGD = brought:SignedSGD

[qmaps.figures]
dots = brought_figures:dots
figure = brought:offset

[qmaps.formats]
marked = brought_formats:Marked
format = brought:offset
"""

SCRIPT = """
import json, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch, qmaps
messages = [str(w.message) for w in caught if "entry point" in str(w.message)]
assert len(messages) == 1, messages
assert messages[0].startswith("entry point 'nothing' of qmaps.maps is ignored: AttributeError")

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from qmaps import figures
    from qmaps.capture.conversion import FORMATS, convert_state_dict
assert [str(w.message) for w in caught] == [
    "entry point 'figure' of qmaps.figures is ignored: it is not a figure declared by "
    "qmaps.figures.figure",
    "entry point 'format' of qmaps.formats is ignored: it is not a subclass of Format with a name",
], [str(w.message) for w in caught]
assert list(FORMATS) == ["bitsandbytes", "marked", "torchao", "qmaps", "torch"]
layer = torch.nn.Linear(9, 8)
adam = torch.optim.Adam(layer.parameters())
layer(torch.ones(9)).sum().backward()
adam.step()
saved, _ = convert_state_dict(adam.state_dict(), "marked")
assert convert_state_dict(saved, "qmaps")[1].source == "marked"

from qmaps import maps, optim
from qmaps.capture import CapturedStates
from qmaps.cli import main
from qmaps.engines.support import NATIVE
from qmaps.lab.frames import analyze_states
from qmaps.lab.pictures import draw
from qmaps.testing import check_map, check_normalizer, check_optimizer

check_map(maps.REGISTRY["cubic"])
q = qmaps.quantizer("whole/cubic@4s")
check_normalizer(q.normalizer, [q.map, maps.Linear(4, signed=False)])
if any(each.name == "native" and each.available for each in qmaps.backends()):
    assert NATIVE.supports(q.normalizer, q.map, (40, 50))
assert abs(q.error(torch.randn(40, 50))["offset"]) < 1
check_optimizer(optim.SignedSGD, lr=0.1, momentum=0.9)

generator = torch.Generator().manual_seed(0)
m = torch.randn(80, 70, generator=generator)
states = CapturedStates.from_tensors(
    {"w": {"exp_avg": m, "exp_avg_sq": m.square()}}, optimizer="AdamW"
)
rows = qmaps.sweep.run(states, ["B64/cubic@8s + whole/cubic@4u"])
assert rows["offset"].notna().equals(rows["mse"].notna()) and rows["offset"].notna().any()
frames = analyze_states(states, "run", min_quantized_size=0)
figures.save = lambda figure, path: path.write_bytes(b"a picture")  # rendering takes long
drawn = {path.stem for path in draw("run")}
assert {path.stem for path in frames} <= drawn | {"states", "profiles"}, drawn
assert "dots" in drawn and "dots" in figures.__all__
try:
    main(["maps", "--json"])
except SystemExit as left:
    assert not left.code
"""


@pytest.mark.slow
def test_parts_of_another_package(tmp_path: Path) -> None:
    metadata = tmp_path / "brought-1.0.dist-info"
    metadata.mkdir()
    (tmp_path / "brought.py").write_text(MODULE)
    (tmp_path / "brought_figures.py").write_text(FIGURES)
    (tmp_path / "brought_formats.py").write_text(FORMATS)
    (metadata / "METADATA").write_text(METADATA)
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    paths = os.pathsep.join([str(tmp_path), str(Path(qmaps.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert '"map": "cubic"' in done.stdout
    assert '"whole"' in done.stdout


def pareto(*_: object) -> None:
    """A figure and a metric with a name of qmaps's own."""


@pytest.mark.parametrize(
    ("declare", "name", "kind"),
    [
        (lambda: type("M", (Map,), {}, name="de"), "de", "map"),
        (lambda: type("N", (Normalizer,), {}, name="Rank-1"), "Rank-1", "normalizer"),
        (lambda: type("N", (Normalizer,), {}, name="b<n>"), "b<n>", "normalizer"),
        (lambda: type("S", (ScaleFormat,), {}, suffix="X8"), "X8", "format of scales"),
        (lambda: metrics.register("MSE", pareto), "MSE", "metric"),
        (lambda: figure()(pareto), "pareto", "figure"),
        (lambda: figure(Picture("Outliers", "", ""))(len), "Outliers", "picture"),
    ],
)
def test_names_of_built_in_parts_are_refused(
    declare: Callable[[], object], name: str, kind: str
) -> None:
    before = str(qmaps.quantizer("B128/DE@8s").map.codebook())
    with pytest.raises(
        BadValueError, match=f"^{re.escape(f'name={name!r} is the name of a built-in {kind}')}$"
    ):
        declare()
    assert str(qmaps.quantizer("B128/DE@8s").map.codebook()) == before


def test_a_package_that_exits_or_has_our_names_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "brought_exit.py").write_text("raise SystemExit(3)")
    (tmp_path / "brought_de.py").write_text(MODULE.replace("cubic", "de"))
    monkeypatch.syspath_prepend(tmp_path)
    points = [
        EntryPoint("one", "brought_exit:Map", "qmaps.maps"),
        EntryPoint("two", "brought_de:Cubic", "qmaps.maps"),
    ]
    with pytest.warns(UserWarning, match="is ignored") as caught:
        assert list(load_entry_points(EntryPoints(points))) == []
    assert [str(warning.message) for warning in caught] == [
        "entry point 'one' of qmaps.maps is ignored: SystemExit: 3",
        "entry point 'two' of qmaps.maps is ignored: BadValueError: name='de' is the name of a "
        "built-in map",
    ]
