"""Checks a built site: every link leads somewhere, and no page loads anything from a network.

python -m docsite.links build/site
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"audio", "embed", "iframe", "img", "script", "source", "video"}
"""Elements that load the target of ``src``; ``link`` loads its ``href``."""


class _Page(HTMLParser):
    """Links, loaded resources and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors = {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADED and "src" in values:
            self.loads.append(values["src"])
        if tag == "link" and "canonical" not in values.get("rel", ""):
            self.loads.append(values.get("href", ""))


def problems(site: Path) -> list[str]:
    """Errors of a built site, a line each, with the page."""
    root = site.resolve()
    pages = {path: _Page(path.read_text("utf-8")) for path in sorted(root.rglob("*.html"))}
    messages = []
    for path, page in pages.items():
        name = path.relative_to(root).as_posix()
        messages += [
            f"{name}: loads {target} from a network"
            for target in page.loads
            if urlsplit(target).scheme in ("http", "https") or target.startswith("//")
        ]
        for target in [*page.links, *page.loads]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if path.name == "404.html" and parts.path.startswith("/"):
                file = root / unquote(parts.path).lstrip("/")
            if file.is_dir():
                file /= "index.html"
            if not file.is_file():
                messages.append(f"{name}: nothing at {target}")
            elif file in pages and unquote(parts.fragment) not in pages[file].anchors:
                messages.append(f"{name}: no anchor at {target}")
    return messages


def main() -> int:
    """Print the problems of the site in the folder given as the first argument."""
    site = Path(sys.argv[1])
    messages = problems(site)
    print("\n".join(messages) or f"{site}: every link leads somewhere")
    return bool(messages)


if __name__ == "__main__":
    sys.exit(main())
