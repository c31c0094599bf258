"""A page in headless Chromium, controlled by the command line alone."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
WHY_NOT = f"no headless browser here: none of {', '.join(NAMES)} is on the path"

# The tests' own code goes to the end of a copy of the page and leaves its answer in the document.
PROBE = """
<script>
window.addEventListener("load", () => {
  const sorted = [...document.querySelectorAll("table.sortable")].map(table => {
    const cells = column => [...table.tBodies[0].rows].map(row => row.cells[column].dataset.value);
    return [...table.tHead.rows[0].cells].map((head, column) => {
      head.querySelector("button").click();
      const up = cells(column), ascending = head.getAttribute("aria-sort");
      head.querySelector("button").click();
      return {up, down: cells(column), aria: [ascending, head.getAttribute("aria-sort")]};
    });
  });
  const answer = {
    images: [...document.images].map(image => image.complete && image.naturalWidth > 0),
    lost: [...document.querySelectorAll('a[href^="#"]')].map(link => link.getAttribute("href"))
      .filter(target => !document.getElementById(target.slice(1))),
    background: getComputedStyle(document.body).backgroundColor,
    colour: getComputedStyle(document.body).color,
    sorted,
  };
  // Windows of Chromium are no narrower than 500 pixels; a document can be.
  document.documentElement.style.width = "360px";
  answer.rightmost = Math.max(...[...document.querySelectorAll("body *")]
    .filter(one => !one.parentElement.closest(".scroll, .wide"))
    .map(one => one.getBoundingClientRect().right));
  document.documentElement.style.width = "";
  /* more */
  const place = document.createElement("pre");
  place.id = "answer";
  place.textContent = JSON.stringify(answer);
  document.body.append(place);
});
</script>
"""


def look(
    page: Path, *, dark: bool = False, more: str = "", width: int = 1280
) -> tuple[dict[str, Any], list[str]]:
    """Return the report of the page and its lines in the console.

    Args:
        page: an HTML file.
        dark: True for a reader who prefers dark pages.
        more: further JavaScript of the probe, with additions to `answer`.
        width: pixels of the window, at least 500.
    """
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / page.name
        copy.write_text(
            page.read_text(encoding="utf-8") + PROBE.replace("/* more */", more), encoding="utf-8"
        )
        scheme = 0 if dark else 1
        done = subprocess.run(
            [
                CHROMIUM,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                f"--window-size={width},900",
                "--disable-dev-shm-usage",
                "--enable-logging=stderr",
                "--host-resolver-rules=MAP * ~NOTFOUND",
                f"--user-data-dir={folder}/profile",
                f"--blink-settings=preferredColorScheme={scheme}",
                "--virtual-time-budget=20000",
                "--dump-dom",
                copy.as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        )
    match = re.search(r'<pre id="answer">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match, done.stderr[-2000:]
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return json.loads(html.unescape(match[1])), console


def check(page: Path) -> None:
    """Check that the console is empty, images and links load, phones fit, and tables sort."""
    light, console = look(page)
    assert console == []
    assert len(light["images"]) == page.read_text(encoding="utf-8").count("<img ")
    assert all(light["images"])
    assert light["lost"] == []
    assert light["rightmost"] <= 360
    assert light["sorted"]
    for table in light["sorted"]:
        for column in table:
            assert column["aria"] == ["ascending", "descending"]
            assert sorted(column["up"]) == sorted(column["down"])
            assert ordered(column["up"], column["down"]), column


def ordered(up: list[str], down: list[str]) -> bool:
    """True if cells are in the order of readers: numbers by value, missing ones last."""
    values = [cell for cell in up if cell != "-"]
    if "-" in up[: len(values)] or "-" in down[: len(values)]:
        return False
    try:
        keys = [float(cell) for cell in values]
    except ValueError:
        return len(set(up)) < len(up) or down == up[::-1]
    return keys == sorted(keys) and [float(cell) for cell in down[: len(values)]] == keys[::-1]
