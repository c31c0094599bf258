"""The page of a run: the answer on its first screen, and details behind clicks."""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from qmaps.analyze import recommend
from qmaps.analyze.recommend.verdict import HARMLESS, MEANINGS, meaning
from qmaps.capture import CapturedStates
from qmaps.lab import report
from qmaps.lab.frames import profiles
from qmaps.lab.pipeline import recommend_for
from qmaps.lab.report import answer as answers
from qmaps.lab.report import page as pages
from qmaps.lab.report.committed import INTERVALS
from qmaps.storage import units
from qmaps.storage.files import write_record
from qmaps.storage.units import size
from tests.browser import CHROMIUM, WHY_NOT, check, look

pytestmark = pytest.mark.slow

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
NAMES = ["layers.0.weight", 'odd<b>"name"', "layers.1.weight"]


def moments(rows: int, cols: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    m = torch.randn(rows, cols, generator=generator) * 1e-3
    return {"exp_avg": m, "exp_avg_sq": m.square() * torch.rand(rows, cols, generator=generator)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a recommendation of three tensors and a picture."""
    tensors = {name: moments(64, 80, seed) for seed, name in enumerate(NAMES)}
    tensors[NAMES[0]]["exp_avg_sq"][3] *= 1e4  # an outlier row
    for state in tensors[NAMES[1]].values():
        state[:8] = 0  # rows without gradients
    states = CapturedStates.from_tensors(tensors)
    folder = tmp_path_factory.mktemp("page")
    recommend_for(states, folder, min_quantized_size=4096)
    (folder / "frames").mkdir()
    profiles(states, min_quantized_size=4096).to_parquet(folder / "frames" / "profiles.parquet")
    (folder / "figures").mkdir()
    (folder / "figures" / "map_curves.png").write_bytes(PIXEL)
    return report.write(folder).parent


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return (run / "report.html").read_text(encoding="utf-8")


def summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "recommend" / "summary.json").read_text())


def summary_step(run: Path) -> int:
    return int(pd.read_parquet(run / "recommend" / "tensors.parquet")["step"].iloc[0])


def test_the_first_screen_answers(run: Path, page: str) -> None:
    first, said = page[: page.index('id="tensors"')], summary(run)
    pairs = pd.read_parquet(run / "recommend" / "pairs.parquet")
    eight = pairs[pairs["preset"] == "8bit"]
    for text in (
        f'<span class="verdict {said["verdict"]}">{said["verdict"]}</span>',
        html.escape(said["reason"]),
        f"{1 - said['nbytes'] / said['full_nbytes']:.0%} saved",
        f"in 32 bits or {size(eight['nbytes'].item())} in 8,",
        "Trainer(..., optimizers=(optimizer, None))",
        f'<pre id="code">{html.escape(said["code"], quote=True)}</pre>'.replace("&quot;", "&#34;"),
        "Gradients were not recorded",
        "Outlier rows: more than half of the largest 1 % of the second moments lie in 5 % of the "
        "rows of layers.0.weight",
        "Second moments of 0, up to 12% of a tensor, in odd&lt;b&gt;&#34;name&#34;",
        "Asked for: the least error within 4.3 bits per state element.",
        "Where quantized: "
        + units.of_states(said["bits_per_element"] / 4, 8, 1)
        + ", scales included.",
        "<h4>Training loop</h4>",
        "<h4>Trainer of Hugging Face</h4>",
        "<h4>YAML of LLaMA-Factory",
        "<h4>YAML of axolotl",
        f"({1 - said['nbytes'] / eight['nbytes'].item():.0%} against 8 bits)",
        "Hardest to quantize: layers.0.weight, which costs most under",
        "go back to the last checkpoint with the preset <code>8bit</code>",
        "How to read <code>",
        f"Step {summary_step(run)} is early: ",
        "<code>paper-4bit</code> is <span class=",
    ):
        assert text in first, text
    widths = {pair for pair in said["best"].values() if pair}
    assert widths
    for pair in widths:
        assert f"<summary>{pair}" in first
    safe = pairs[pairs["verdict"].isin(HARMLESS)].sort_values("nbytes")["quantizer"]
    chosen = " + ".join(said["choice"]["state_quantizers"].values())
    if len(safe):
        narrower = f"The narrowest pair without a problem found is <b>{safe.iloc[0]}</b>"
        assert (narrower in first) == (safe.iloc[0] != chosen)
        assert re.search(
            rf"<summary>{re.escape(safe.iloc[0])}.*<b>narrowest without a problem found</b>", first
        )
        assert said["simplest"].count(safe.iloc[0].split(" + ")[0]) == 1
    else:
        assert said["simplest"] is None


def test_the_heatmap_has_every_tensor_and_candidate(run: Path, page: str) -> None:
    pairs = pd.read_parquet(run / "recommend" / "pairs.parquet")
    rows = re.findall(r'<tr data-tensor="(\d+)">(.*?)</tr>', page, re.DOTALL)
    assert [int(number) for number, _ in rows] == [0, 1, 2]
    tensors = pd.read_parquet(run / "recommend" / "tensors.parquet")
    for name, (_, row) in zip(NAMES, rows, strict=True):
        assert row.count("<td") in (len(pairs), len(pairs) + 1)  # one more where 32 bits are chosen
        assert row.count(" chosen") == 1
        chosen = tensors[(tensors["parameter"] == name) & tensors["chosen"]]["quantizer"].item()
        assert re.search(rf' chosen" title="{re.escape(chosen)}: ', row)
    (text,) = re.findall(r'<script type="application/json" id="cards">(.*?)</script>', page)
    cards = json.loads(text)
    assert [card["name"] for card in cards["tensors"]] == NAMES
    for card in cards["tensors"]:
        assert set(card["moments"]) == {"exp_avg", "exp_avg_sq"}
        for moment in card["moments"].values():
            assert sum(moment["counts"]) + moment["zeros"] == 64 * 80
            assert len(base64.b64decode(moment["picture"])) == moment["rows"] * moment["cols"]
    picture = base64.b64decode(cards["tensors"][0]["moments"]["exp_avg_sq"]["picture"])
    cols = cards["tensors"][0]["moments"]["exp_avg_sq"]["cols"]
    lines = [picture[at : at + cols] for at in range(0, len(picture), cols)]
    assert max(range(len(lines)), key=lambda at: sum(lines[at])) == 1  # rows 2 and 3 share a cell


CLICKS = """
  const shown = () => document.querySelectorAll("dialog[open]");
  document.querySelector("tr[data-tensor='1'] td").click();
  const card = shown()[0];
  answer.card = {
    title: card.querySelector("h2").textContent,
    code: card.querySelector("pre").textContent,
    plots: card.querySelectorAll("svg").length,
    bars: card.querySelectorAll("rect").length,
    options: card.querySelectorAll("tbody tr").length,
    painted: [...card.querySelectorAll("canvas")].map(canvas =>
      new Set(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data).size),
  };
  card.querySelector("button.close").click();
  answer.closed = !card.open;
  document.querySelector("figure img").click();
  answer.zoomed = [...shown()].at(-1).querySelector("img").naturalWidth;
  document.querySelector("dialog.zoom img").click();
  const field = document.querySelector("input[data-table=heat]");
  field.value = "LAYERS 1";
  field.dispatchEvent(new Event("input"));
  answer.kept = [...document.querySelectorAll("tr[data-tensor]")].filter(row => !row.hidden).length;
  document.querySelector("button[data-copy=code]").click();
  answer.cut = [...document.querySelectorAll("#code, th.name, th.name button")]
    .filter(one => one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight).length;
"""


@pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)
def test_in_a_browser(run: Path) -> None:
    path = run / "report.html"
    check(path)
    actual, console = look(path, dark=True, more=CLICKS)
    assert console == []
    red = int(re.findall(r"\d+", actual["background"])[0])
    assert red < 64
    card = actual["card"]
    assert card["title"] == NAMES[1]
    assert card["code"].startswith('overrides={"odd<b>\\"name\\"": {"exp_avg": "')
    assert card["plots"] == 2
    assert card["bars"] > 10
    assert card["options"] >= len(pd.read_parquet(run / "recommend" / "pairs.parquet"))
    assert min(card["painted"]) > 10
    assert (actual["closed"], actual["zoomed"], actual["kept"], actual["cut"]) == (True, 1, 1, 0)


def test_the_answer_is_kept_for_the_same_states(run: Path, monkeypatch) -> None:
    tensors = {name: moments(64, 80, seed) for seed, name in enumerate(NAMES)}
    calls = []
    monkeypatch.setattr(recommend, "run", lambda *_, **__: calls.append(1) or 1 / 0)
    with pytest.raises(ZeroDivisionError):  # these are other states
        recommend_for(CapturedStates.from_tensors(tensors), run, min_quantized_size=4096)
    tensors[NAMES[0]]["exp_avg_sq"][3] *= 1e4
    for state in tensors[NAMES[1]].values():
        state[:8] = 0
    recommend_for(CapturedStates.from_tensors(tensors), run, min_quantized_size=4096)
    assert len(calls) == 1
    with pytest.raises(ZeroDivisionError):
        recommend_for(CapturedStates.from_tensors(tensors), run, min_quantized_size=99)


def test_a_page_without_names_warns(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    write_record(folder / "about.json", {"naming": "numbers: no config.json"})
    page = report.write(folder).read_text()
    assert "Parameters have numbers: no config.json. Overrides fit the model only under" in page


def test_a_run_of_an_earlier_version_or_without_a_step_cost(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    for cost, verdict, gradients, shown in (
        (0.01, "safe", "recorded", "unproven"),
        (0.0001, "safe", "recorded", "clean"),
        (0.0001, "safe", "simulated", "unproven"),
        (None, "unsafe", "recorded", "unsafe"),
    ):
        changed = {**summary(run), "step_cost": cost, "verdict": verdict, "gradients": gradients}
        write_record(folder / "recommend" / "summary.json", changed)
        page = report.write(folder).read_text()
        assert f'<span class="verdict {shown}">{shown}</span>' in page


def test_trainings_of_the_run_overrule_replays(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    path = folder / "recommend" / "pairs.parquet"
    pairs = pd.read_parquet(path)
    pairs.loc[pairs["preset"] == "paper-4bit", "verdict"] = "clean"
    pairs.to_parquet(path)
    differences = {"32-bit AdamW": 0.0, "paper": 0.0235, "mine": -0.0053, "8 bits": float("nan")}
    losses = pd.DataFrame({"run": list(differences), "difference": list(differences.values()),
                           "mean": 2.0, "state_mib": 1.0, "nonfinite": 0})  # fmt: skip
    losses.to_parquet(folder / "frames" / "losses.parquet")
    trained = {"paper-4bit": "paper", "recommended": "mine", "8bit": "8 bits"}
    write_record(folder / "about.json", {"trained": trained})
    page = report.write(folder).read_text()
    before = page[: page.index('id="losses"')]
    assert "Trained with it, this run ended at a validation loss -0.0053 from" in before
    assert "No interval over seeds is committed for this pair, model and number" in before
    worse = "trained with it, this run ended +0.0235 from 32 bits"
    assert f'<code>paper-4bit</code> is <span class="caution">caution</span>: {worse}' in before
    (row,) = (r for r in re.findall(r"<tr>.*?</tr>", before, re.DOTALL) if ">paper-4bit<" in r)
    assert ">caution<" in row
    assert ">clean<" not in row
    (row,) = (r for r in re.findall(r"<tr>.*?</tr>", before, re.DOTALL) if ">8bit</td>" in r)
    assert ">unsafe<" in row


def test_one_seed_stands_beside_the_committed_interval(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    differences = {"32-bit AdamW": 0.0, "paper": 0.0235, "mine": -0.0053}
    losses = pd.DataFrame({"run": list(differences), "difference": list(differences.values()),
                           "mean": 2.0, "state_mib": 1.0, "nonfinite": 0})  # fmt: skip
    losses.to_parquet(folder / "frames" / "losses.parquet")
    record = {
        "workload": "stdlib-lm", "architecture": "GPT on bytes", "data": "files of <Python>",
        "steps": 250, "settings": {"lr": 0.001}, "parameters": 1234, "seed": 3, "command": "",
        "captured_step": 250, "machine": "", "unit": "nats",
        "versions": {"qmaps": "1", "torch": "2", "python": "3"},
        "trained": {"paper-4bit": "paper", "recommended": "mine"},
    }  # fmt: skip
    write_record(folder / "about.json", record)
    page = report.write(folder).read_text()
    interval = "-0.0032 (-0.0303 to +0.0238), 8 seeds"
    assert f"No interval is committed for this pair; that of paper is {interval}." in page
    rows = re.findall(r"<tr>.*?</tr>", page[page.index('id="losses"') :], re.DOTALL)
    assert "<b>" not in "".join(rows)
    (row,) = (row for row in rows if ">paper<" in row)
    assert re.findall(r">([^<>]+)</td>", row)[:3] == ["paper", "+0.0235", interval]
    top = page[: page.index("<nav>")]
    assert re.findall(r"<dt>(.*?)</dt>", top) == ["Model", "Data", "Step"]
    assert "GPT on bytes, 1,234 parameters" in top
    assert "<dd>files of &lt;Python&gt;</dd>" in top
    # Of other steps nothing is committed.
    write_record(folder / "about.json", {**record, "steps": 80})
    assert interval not in report.write(folder).read_text()


def test_a_preset_has_the_pair_that_the_run_had() -> None:
    """Presets of version 0.3 had other pairs."""
    pairs = pd.DataFrame({"preset": ["4bit", ""], "quantizer": ["old + old", "B1/nf4@4s + 32-bit"]})
    answered = {"pairs": pairs, "mixed": 1, "main": "B1/nf4@4s + 32-bit"}
    record = {"trained": {"4bit": "four", "8bit": "eight", "recommended": "mine"}}
    expected = {"four": "old + old", "mine": "B1/nf4@4s + 32-bit"}
    assert pages._pairs(record, answered) == expected
    assert pages._pairs(record, {**answered, "mixed": 2}) == {"four": "old + old"}
    assert pages._pairs(record, None) == {}


def test_committed_intervals_are_those_of_the_report() -> None:
    lines = (Path(__file__).parents[3] / "reports" / "judges.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    for (workload, steps, rate), pairs in INTERVALS.items():
        assert [workload, str(steps), f"**{rate:g}**"] in [row[:3] for row in cells]
        for pair, interval in pairs.items():
            (row,) = (row for row in cells if row[:2] == [workload, pair])
            assert row[2] == str(interval.seeds)
            assert row[4:6] == [
                f"{interval.mean:+.4f}", f"{interval.low:+.4f} to {interval.high:+.4f}"
            ]  # fmt: skip


def test_the_page_explains_the_verdict_and_the_largest_cost(run: Path, page: str) -> None:
    said = summary(run)
    means = meaning(said["verdict"], said["step_cost"], said["gradients"])
    badge = f'<span class="verdict {said["verdict"]}">{said["verdict"]}</span>'
    assert f"{badge} {html.escape(means)}.</p>" in page
    tensors = pd.read_parquet(run / "recommend" / "tensors.parquet")
    worst = tensors[tensors["chosen"]].set_index("parameter")["error"].idxmax()
    assert f"Costs most under this choice: <b>{html.escape(worst, quote=False)}" in page.replace(
        "&#34;", '"'
    )
    below = page[page.index('id="candidates"') :]
    for verdict in pd.read_parquet(run / "recommend" / "pairs.parquet")["verdict"].unique():
        assert f'<b class="{verdict}">{verdict}</b>: {MEANINGS[verdict]}.' in below


def chosen_row(name: str, spec: str, nbytes: int, noise: float, chosen: bool) -> dict[str, Any]:
    return {
        "parameter": name, "quantizer": spec, "chosen": chosen, "nbytes": nbytes, "cost": 1.0,
        "error": noise**2, "update_gain": 1.0, "update_noise": noise, "largest_update": 1.0,
        "zero_point_share": 0.0,
    }  # fmt: skip


def test_the_smallest_pair_that_halves_the_cost_mends_a_tensor() -> None:
    full, eight, four, six = "32-bit + 32-bit", "a + b", "c + d", "e + f"
    options = {full: (800, 0.0), eight: (200, 2.0), four: (110, 0.4), six: (150, 0.1)}
    tensors = pd.DataFrame(
        [chosen_row("rare", spec, *sizes, spec == eight) for spec, sizes in options.items()]
        + [chosen_row("other", spec, n, 0.1, spec == eight) for spec, (n, _) in options.items()]
    )
    pairs = pd.DataFrame({"quantizer": [eight, four, six], "diagnostic": False})
    answer = answers._costliest(tensors, pairs)
    assert answer is not None
    assert (answer["name"], answer["pair"], answer["share"]) == ("rare", eight, "100%")
    assert (answer["mend"], answer["times"], answer["more"]) == (four, "25", "90 bytes less")
    assert answer["code"] == 'overrides={"rare": {"exp_avg": "c", "exp_avg_sq": "d"}}'
    assert answers._costliest(tensors, pairs.assign(diagnostic=True))["mend"] is None
    assert answers._costliest(tensors[tensors["parameter"] == "rare"], pairs) is None


NARROW = """
  const heat = document.querySelector(".heat"), picked = heat.querySelector("td.chosen");
  const inside = (one, place) => one.getBoundingClientRect().left >= place.left
    && one.getBoundingClientRect().right <= place.right;
  answer.chosen = inside(picked, heat.getBoundingClientRect());
  const screen = {left: 0, right: innerWidth};
  const verdicts = [...document.querySelectorAll("tbody .verdict")];
  answer.verdicts = verdicts.every(one => inside(one, screen));
  answer.states = [...document.querySelectorAll(".answer .bytes")].some(one => one.offsetWidth);
"""


@pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)
def test_a_narrow_screen_shows_the_verdicts(run: Path) -> None:
    actual, console = look(run / "report.html", more=NARROW, width=500)
    assert console == []
    assert (actual["chosen"], actual["verdicts"], actual["states"]) == (True, True, False)


def test_narrow_screens_get_stacked_panels(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    for name in ("loss_curves", "loss_curves-narrow"):
        (folder / "figures" / f"{name}.png").write_bytes(PIXEL)
    page = report.write(folder).read_text()
    assert page.count('<source media="(max-width: 700px)" srcset="data:image/png') == 1
    assert page.count("<img ") == 2


def test_tensors_without_updates_are_not_called_safe(tmp_path: Path) -> None:
    tensors = {"used": moments(64, 80, 0), "never": moments(64, 80, 1)}
    for state in tensors["never"].values():
        state.zero_()
    states = CapturedStates.from_tensors(tensors)
    recommend_for(states, tmp_path, min_quantized_size=4096)
    page = report.write(tmp_path).read_text()
    assert "Not measured: the replayed rows have no updates in never." in page
    (row,) = re.findall(r'<tr data-tensor="1">(.*?)</tr>', page, re.DOTALL)
    assert row.count('class="s-1') == row.count("<td")
    assert "clean" not in row
    assert "unproven" not in row
    chosen = pd.read_parquet(tmp_path / "recommend" / "tensors.parquet")
    chosen = chosen[chosen["chosen"]].set_index("parameter")["quantizer"]
    pairs = pd.read_parquet(tmp_path / "recommend" / "pairs.parquet").set_index("quantizer")
    assert pairs.loc[chosen["never"], "verdict"] != "unsafe"
