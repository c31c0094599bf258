"""Pages come from the registries and docstrings, so every addition has one."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from docsite import pictures
from docsite.kinds import maps, normalizers, notebooks, optimizers, reference, repository
from docsite.page import ROOT, fenced
from qmaps import optim
from qmaps.maps import REGISTRY, Map
from qmaps.normalize import REGISTRY as NORMALIZERS
from qmaps.normalize.scale_format import SUFFIXES

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing is tested where figures are."""
    monkeypatch.setattr(pictures.figures, "save", lambda figure, path, dpi: path.write_bytes(b"x"))
    monkeypatch.setattr(pictures.figures, "map_curves", lambda frame: frame)
    pictures.curves.cache_clear()
    yield
    pictures.curves.cache_clear()


def test_every_map_has_a_page_with_its_codebooks() -> None:
    pages = {page.title: page for page in maps.pages()}
    assert set(pages) == {"All maps", "Your own", *REGISTRY}
    for name in REGISTRY:
        assert f"[`{name}`](" in pages["All maps"].text
    page = pages["DE"]
    assert page.path == "maps/de.md"
    assert "::: qmaps.maps.de.DynamicExponent" in page.text
    assert "class DynamicExponent(Map, name=" in page.text
    assert "0    0.00325    0.00775    0.02125" in page.text
    assert page.files == {"maps/de.svg": b"x"}


def test_a_map_that_is_declared_has_a_page() -> None:
    @dataclass(frozen=True)
    class Fifth(Map, name="fifth"):
        """A map for this test."""

        def values(self) -> Tensor:
            return torch.linspace(0, 1, 2**self.bits, dtype=torch.float64) ** 5

    try:
        pages = {page.title: page for page in maps.pages()}
        assert "class Fifth" in pages["fifth"].text
        assert "`fifth@4s`" in pages["fifth"].text
    finally:
        del REGISTRY["fifth"]


def test_every_normalizer_has_a_page() -> None:
    titles = [page.title for page in normalizers.pages()]
    names = sorted((cls.spec_name for cls in NORMALIZERS), key=str.lower)
    formats = [f"…{suffix}" for suffix in sorted(SUFFIXES)]
    assert titles == ["All normalizers", *names, *formats, "…&…"]
    assert {"…x8", "…xe8m0", "…xf16"} <= set(formats)


def test_every_optimizer_stands_on_a_page_with_its_states() -> None:
    pages = optimizers.pages()
    text = "\n".join(page.text for page in pages)
    for name in optim.__all__:
        if isinstance(getattr(optim, name), type):
            assert len(re.findall(rf"^::: \S+\.{name}$", text, re.MULTILINE)) == 1, name
    adamw = next(page for page in pages if page.title == "AdamW")
    assert "| `AdamW4bit` | `exp_avg_sq` | `B64xbf16/geometric@3u+qsr` | 3.25 |" in adamw.text
    assert "qmaps/engines/kernels/rules/adam.hpp" in adamw.text
    sm3 = next(page for page in pages if page.title == "SM3")
    assert "accumulator_1" in sm3.text
    assert "accumulator_2" not in sm3.text.split("???")[0]


def test_the_reference_has_every_public_name() -> None:
    pages = {page.title: page.text for page in reference.pages()}
    assert "::: qmaps.Quantizer\n" in pages["qmaps"]
    assert "::: qmaps.capture.StateRecorder\n" in pages["qmaps.capture"]
    assert "::: qmaps.ops.quantiles.sram\n" in pages["qmaps.ops.quantiles"]
    assert "## `qmaps sweep`" in pages["Command line"]


def test_links_between_files_become_links_between_pages() -> None:
    text = """[a](reports/judges.md#b) ![p](reports/bench/amd-epyc/cpu.png) [c](CONTRIBUTING.md)
[s](qmaps/algebra/spec.py) [f](reports) [w](https://example.org) [n](01.md)
```python
x = [a](reports/judges.md)
```
"""
    linked, files = repository.relinked(text, ROOT / "README.md", "index.md")
    assert (
        linked
        == """[a](reports/judges.md#b) ![p](reports/bench/amd-epyc/cpu.png) [c](contributing.md)
s (`qmaps/algebra/spec.py`) f [w](https://example.org) [n](01.md)
```python
x = [a](reports/judges.md)
```
"""
    )
    assert list(files) == ["reports/bench/amd-epyc/cpu.png"]
    up, _ = repository.relinked("[r](../README.md)", ROOT / "reports" / "x.md", "reports/x.md")
    assert up == "[r](../index.md)"


def test_pages_of_the_repository() -> None:
    assert [page.path for page in repository.home()] == ["index.md"]
    shown = {page.path for page in repository.guides()}
    names = {path.name for path in Path(ROOT / "docs").glob("*.md")}
    assert shown == names - {"README.md"} | {repository.CONTENTS}
    assert repository.reports()[0].path == "reports/README.md"
    assert "security.md" in [page.path for page in repository.project()]


def test_architecture_has_the_sentence_of_every_entry() -> None:
    page = next(page for page in repository.guides() if page.path == "architecture.md")
    sentences = dict(re.findall(r"^\| `([^`]+)` \| (.+?) \| .+ \|$", page.text, re.MULTILINE))
    entries = {
        path.name: path / "__init__.py" if path.is_dir() else path
        for path in (ROOT / "qmaps").iterdir()
        if (path.is_dir() and path.name != "__pycache__") or path.suffix == ".py"
    }
    assert sentences == {name: first_line(path) for name, path in entries.items()}
    assert list(page.files) == ["layers.svg"]


def first_line(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split("\n")[0]


def test_every_report_stands_in_the_index_of_reports() -> None:
    text = (ROOT / "reports" / "README.md").read_text("utf-8")
    linked = set(re.findall(r"\]\(([^)]+\.md)\)", text))
    folder = ROOT / "reports"
    results = {path.relative_to(folder).as_posix() for path in folder.rglob("*.md")}
    assert linked == results - {"README.md"}


def test_every_optimizer_stands_in_the_table_of_engines() -> None:
    text = (ROOT / "docs" / "optimizers.md").read_text("utf-8")
    table = text.split("## Which engine steps what")[1].split("## ")[0]
    named = {"Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "Lion", "AdEMAMix"}
    plain = optim.QuantizedOptimizer.state_shapes
    for rule, *_ in optimizers.families():
        if rule.takes_norms or rule.state_shapes is not plain:  # the others have a row for all
            named.add(rule.__name__)
    assert {"LAMB", "SM3"} <= named
    assert all(f"`{name}`" in table for name in named)


def test_a_notebook_is_shown_with_its_outputs() -> None:
    pytest.importorskip("nbconvert")
    page = notebooks.pages()[0]
    assert "4.25 bits per element, largest error 0." in page.text
    assert [Path(name).suffix for name in page.files] == [".png"]


def test_doctests_are_fenced() -> None:
    text = "One.\n\n    >>> 1 +\\\n    ... 1\n    2\n\nTwo.\n\n>>> print()\n<BLANKLINE>"
    assert fenced(text) == (
        "One.\n\n    ```pycon\n    >>> 1 +\\\n    ... 1\n    2\n    ```\n\nTwo.\n\n"
        "```pycon\n>>> print()\n<BLANKLINE>\n```"
    )


def test_every_picture_is_shown_by_a_page() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "reports").rglob("*.md")]
    text = "".join(page.read_text("utf-8") for page in pages)
    files = [file for top in ("docs", "reports") for file in (ROOT / top).rglob("*.[ps][nv]g")]
    assert [file for file in files if file.name not in text] == []
