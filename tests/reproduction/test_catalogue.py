"""An exhibit is its file, and each number of a paper is stored once."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from reproduction import PAPERS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NUMBERS = ROOT / "reproduction" / "papers"
ORDER = {
    "8-bit-optimizers": "figure-3 figure-4 figure-5 figure-6 table-1 table-2 table-3 table-5 "
    "table-6 appendix-b appendix-c appendix-e appendix-f section-2-2",
    "4-bit-optimizers": "figure-1 figure-3 figure-4 figures-5-to-19 figures-20-to-31 figure-32 "
    "table-1 table-2 table-4 table-5 table-6 theorem-1",
    "8-bit-parallelism-2015": "figure-1 figure-2 tables-1-3-4-6-7 table-2 table-5 section-3-2",
    "low-precision-model-memory": "figure-2 figure-3 figure-4 table-1 table-2 table-3 table-4 "
    "table-5 table-6 theorem-1",
    "8-bit-adafactor": "quantization-precision log-space-quantization memory-footprint "
    "training-speed apollo",
}
EXHIBIT = '''
"""Table 8: an exhibit that nothing but this file knows of."""

import pandas as pd

from reproduction.claim import Claim
from reproduction.exhibit import Exhibit, Finding, Needs

EXHIBIT = Exhibit(
    name="table-8",
    covers=("Table 8",),
    title="One and one",
    needs=Needs.NOTHING,
    build=lambda _: {"sum": pd.DataFrame({"sum": [1 + 1]})},
    find=lambda frames: Finding(
        statements=[Claim("One and one is two.", bool((frames["sum"]["sum"] == 2).all()))],
        tables=frames,
    ),
)
'''
RUN = """
import json, sys
from pathlib import Path

from matplotlib.figure import Figure

import reproduction
from tests.reproduction.conftest import adam_states, without_layout

Figure.draw_without_rendering = without_layout
out = Path(sys.argv[1])
name = "8-bit-parallelism-2015"
reproduction.run([name], states=[adam_states(0)], out=out, runs=out / "runs")
exhibits = [each.name for each in reproduction.PAPERS[name].exhibits]
print(json.dumps([reproduction.__file__, exhibits]))
"""


def test_the_order_of_the_pages() -> None:
    names_of_exhibits = {
        name: [exhibit.name for exhibit in paper.exhibits] for name, paper in PAPERS.items()
    }
    assert names_of_exhibits == {name: names.split() for name, names in ORDER.items()}
    assert list(names_of_exhibits) == list(ORDER)


def test_a_new_file_is_an_exhibit_of_the_catalogue_and_of_the_page(tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    for package in ("reproduction", "tests/reproduction"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, copy / package, ignore=ignored)
    (copy / "reproduction/parallelism_2015/table_8.py").write_text(EXHIBIT)
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    file, exhibits = json.loads(done.stdout)
    assert Path(file).is_relative_to(copy)
    *before, last = ORDER["8-bit-parallelism-2015"].split()
    assert exhibits == [*before, "table-8", last]
    folder = tmp_path / "8-bit-parallelism-2015"
    assert "## Table 8: One and one\n\n**reproduced** (1 reproduced)" in (
        (folder / "README.md").read_text()
    )
    assert '<section id="table-8">' in (folder / "index.html").read_text()
    assert pd.read_csv(folder / "table-8-sum.csv")["sum"].tolist() == [2]


def distinctive(numbers: Iterable[str]) -> set[float]:
    """Numbers of three significant digits, or of two and a point."""
    return {float(number) for number in numbers if len(number.strip("0").lstrip(".0")) > 2}


def columns() -> Iterator[tuple[Path, str, set[float]]]:
    """Columns of the papers' tables, long enough to rule out chance."""
    for path in sorted(NUMBERS.rglob("*.csv")):
        frame = pd.read_csv(path, comment="#", skipinitialspace=True, dtype={"paper": str})
        if "quantity" in frame:
            for quantity, rows in frame.groupby("quantity"):
                if len(values := distinctive(rows["paper"])) > 2:
                    yield path, str(quantity), values


def literals(path: Path) -> set[float]:
    return {
        float(text) for text in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", path.read_text())
    }


def copies(root: Path) -> list[str]:
    """Columns repeated in another source, up to a few numbers."""
    files = [
        (path, literals(path))
        for package in ("qmaps", "reproduction", "benchmarks")
        for path in sorted((root / package).rglob("*"))
        if path.suffix in (".py", ".json", ".csv", ".toml") and not path.is_relative_to(NUMBERS)
    ]
    return [
        f"{path.relative_to(root)} holds {table.parent.name}, {table.stem}, {quantity}"
        for table, quantity, values in columns()
        for path, numbers in files
        if len(values & numbers) >= 0.75 * len(values)
    ]


def test_no_table_of_numbers_is_stored_twice() -> None:
    assert len(list(columns())) > 25
    assert copies(ROOT) == []
