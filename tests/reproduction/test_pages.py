"""Pages of a user's own states: complete, self-contained, and without typed numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from markupsafe import escape

from qmaps import analyze
from qmaps.errors import BadValueError
from reproduction import PAPERS, page, run, workloads
from reproduction.claim import published
from reproduction.context import Context, NotYetError
from reproduction.eight_bit import appendix_b, table_6
from reproduction.eight_bit._maps import first_only
from reproduction.exhibit import Needs
from tests.browser import CHROMIUM, WHY_NOT, check, look
from tests.reproduction.conftest import adam_states

pytestmark = pytest.mark.slow

OWN = {
    name: [e for e in paper.exhibits if e.needs in (Needs.STATES, Needs.NOTHING)]
    for name, paper in PAPERS.items()
}
MORE = "pretrained|figures-5-to-19-[1-9]"
"""Pictures of other weights, and of further blocks: these states have one."""
NAMES = [name for name, exhibits in OWN.items() if exhibits]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_every_exhibit_with_its_files(pages: Path, name: str) -> None:
    folder = pages / name
    markdown, page = (folder / "README.md").read_text(), (folder / "index.html").read_text()
    assert "`python -m reproduction --mine`; states of AdamW, step 7" in markdown
    for exhibit in OWN[name]:
        assert f"## {exhibit.label}: {exhibit.title}" in markdown
        assert f'<section id="{exhibit.name}">' in page
        captioned = {caption for caption in exhibit.captions if not re.search(MORE, caption)}
        assert captioned <= {path.stem for path in folder.glob("*.png")}
    linked = set(re.findall(r"\]\(([\w.-]+\.(?:png|csv))\)", markdown))
    assert linked == {path.name for path in folder.iterdir()} - {"README.md", "index.html"}
    assert page.count("<img ") == page.count('src="data:image/png;base64,')
    assert not re.findall(r'(?:src|href)="(?!data:|#|\.\./papers\.html)', page)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_of_a_users_states_does_not_name_our_models(pages: Path, name: str) -> None:
    """Tables may name them; some hold comparisons with our live models."""
    lines = (pages / name / "README.md").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("## "))
    text = "\n".join(line for line in lines[first:] if not line.startswith("|"))
    models = [*(set(workloads.names()) - {"digits"}), "MiniLM", "`digits`", "{"]
    assert not [model for model in models if model in text]
    assert not re.findall(r"(?i)\b(?:ours\b|our (?:own|model|transformer|parameters))", text)
    assert "embedding" not in text.replace(appendix_b.EXHIBIT.title, "")


def test_a_page_names_the_origin_of_its_states(pages: Path) -> None:
    text = (pages / "8-bit-optimizers" / "README.md").read_text()
    assert "Made from states of AdamW, step 7." in text
    origins = "states of AdamW, step 7 and of AdamW, step 7; the figure: AdamW, step 7"
    assert f"Made from {origins}." in text


def test_the_summary_counts_and_links(pages: Path) -> None:
    text, page = (pages / "papers.md").read_text(), (pages / "papers.html").read_text()
    count = sum(len(exhibits) for exhibits in OWN.values())
    assert re.search(rf" {count} are made here, \d+ of them with .*, 0 wait", text)
    for name in NAMES:
        assert f"({name}/README.md)" in text
        for exhibit in OWN[name]:
            assert f'href="{name}/index.html#{exhibit.name}"' in page
    for paper in PAPERS.values():
        for item in paper.left_out["item"]:
            assert f"| {item} |" in text
            assert f"<b>{item}</b>" in page
        text_of_page = (pages / paper.name / "README.md").read_text()
        for why in paper.errors["why"]:
            assert why in text
            assert why in text_of_page
            assert str(escape(why)) in page
    left_out = sum(len(paper.wholly_left_out) for paper in PAPERS.values())
    assert f"and {left_out} are left out, each with the reason, as are parts of others." in text


MISSING = {
    "8-bit-optimizers": {"GLUE": "Table 1", "WMT": "Table 1", "ImageNet": "Table 1"},
    "4-bit-optimizers": {
        "GLUE": "Table 2", "E2E": "Table 2", "SQuAD": "Table 2", "WMT": "Table 2",
        "ImageNet": "Table 6", "MMLU": "Table 3", "Alpaca": "Figure 4",
    },
    "low-precision-model-memory": {"ImageNet": "Table 3", "GLUE": "Table 4"},
    "8-bit-parallelism-2015": {"ImageNet": "Figure 2"},
}  # fmt: skip
"""Data sets out of reach here, and a figure or table for each."""


@pytest.mark.parametrize("name", MISSING)
def test_missing_data_are_named_with_their_exhibit(pages: Path, name: str) -> None:
    paper, text = PAPERS[name], (pages / "papers.md").read_text()
    for data, label in MISSING[name].items():
        rows = [row for row in paper.left_out.itertuples() if data in str(row.why)]
        assert any(str(row.item).split(", ")[0] == label for row in rows), (data, label)
        assert all(f"| {row.item} | {row.why} |" in text for row in rows)


@pytest.mark.parametrize("name", PAPERS)
def test_left_out_parts_belong_to_exhibits_that_are_made(name: str) -> None:
    paper = PAPERS[name]
    covered = {label for exhibit in paper.exhibits for label in exhibit.covers}
    items = set(paper.wholly_left_out["item"])
    assert items.isdisjoint(covered)
    parts = [item for item in paper.left_out["item"] if item not in items]
    assert all(item.partition(", ")[0] in covered for item in parts)
    assert not [item for item in items if item.partition(", ")[0] in covered]


def test_table_6_is_the_analysis_of_the_states(pages: Path) -> None:
    table = pd.read_csv(pages / "8-bit-optimizers" / "table-6.csv").set_index(["what", "quantity"])
    errors = [
        100 * analyze.update_error(adam_states(seed), [first_only("linear")])["mean_rel_error"][0]
        for seed in (0, 1)
    ]
    row = table.loc[(table_6.WITH_ZERO, table_6.ELEMENTS)]
    assert row["ours"] == pytest.approx(sum(errors) / 2, rel=1e-5)
    assert row["ours_spread"] == pytest.approx(abs(errors[0] - errors[1]) / 2, rel=1e-4)
    for name in ("dynamic", "inverse dynamic", "quantile"):
        codes = [
            100 * analyze.first_code_error(adam_states(seed), [first_only(name)])["mean_rel_error"]
            for seed in (0, 1)
        ]
        row = table.loc[(name, table_6.RELATIVE)]
        assert row["ours"] == pytest.approx(sum(error.mean() for error in codes) / 2, rel=0.02)
    assert table.loc[("linear", table_6.RELATIVE), "paper"] == 201


def test_a_second_call_keeps_frames_and_others_states_make_new_ones(
    tmp_path: Path, monkeypatch
) -> None:
    only = replace(PAPERS["8-bit-optimizers"], exhibits=(table_6.EXHIBIT,))
    monkeypatch.setitem(PAPERS, only.name, only)
    chosen = {"papers": [only.name], "out": tmp_path / "out", "runs": tmp_path / "runs"}
    run(states=[adam_states(0)], **chosen)
    frame = tmp_path / "runs/frames/8-bit-optimizers/table-6/errors.parquet"
    first, content = frame.stat().st_mtime_ns, pd.read_parquet(frame)
    run(states=[adam_states(0)], **chosen)
    assert frame.stat().st_mtime_ns == first
    run(states=[adam_states(2)], **chosen)
    assert not pd.read_parquet(frame).equals(content)


def test_a_table_that_is_not_there_is_named_with_its_command(tmp_path: Path) -> None:
    context = Context(tmp_path, reports=tmp_path / "reports")
    with pytest.raises(NotYetError) as caught:
        context.table("ablations/eight-bit.csv", "python -m benchmarks.ablations")
    assert str(caught.value) == (
        "reports/ablations/eight-bit.csv is not there yet; `python -m benchmarks.ablations` makes "
        "it"
    )


def test_unknown_papers_and_numbers(tmp_path: Path) -> None:
    with pytest.raises(BadValueError) as caught:
        run(["8-bit-optimisers"], out=tmp_path)
    assert str(caught.value) == (
        f"paper='8-bit-optimisers' is unknown; allowed are {', '.join(PAPERS)}; nearest match: "
        "8-bit-optimizers"
    )
    with pytest.raises(BadValueError) as caught:
        published("8-bit-optimizers", "table-99")
    assert str(caught.value) == "exhibit='table-99' of '8-bit-optimizers' has no published numbers"


@pytest.mark.parametrize("name", PAPERS)
def test_everything_is_covered_once_or_left_out_with_a_reason(name: str) -> None:
    paper = PAPERS[name]
    covered = [label for exhibit in paper.exhibits for label in exhibit.covers]
    items = paper.left_out
    assert not items["why"].isna().any()
    labels = covered + list(items["item"])
    assert len(labels) == len(set(labels))
    assert len({exhibit.name for exhibit in paper.exhibits}) == len(paper.exhibits)


@pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)
@pytest.mark.parametrize("file", ["papers.html", *(f"{name}/index.html" for name in NAMES)])
def test_a_page_in_a_browser(pages: Path, file: str) -> None:
    check(pages / file)


@pytest.mark.parametrize(
    ("cell", "sorted_by"),
    [
        ("1,234 ± 5", "1234"),
        ("inf", "Infinity"),  # a loss that diverged; JavaScript reads no other spelling
        ("-inf", "-Infinity"),
        ("-", "-"),
        ("information", "information"),
    ],
)
def test_sort_keys_of_cells(cell: str, sorted_by: str) -> None:
    assert page._raw(cell) == sorted_by


@pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)
def test_pages_are_light_and_dark(pages: Path) -> None:
    (light, _), (dark, _) = look(pages / "papers.html"), look(pages / "papers.html", dark=True)
    assert brightness(light["background"]) > 200 > 80 > brightness(light["colour"])
    assert brightness(dark["background"]) < 60 < 180 < brightness(dark["colour"])


def brightness(colour: str) -> float:
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3
