"""Faults of a built site: links to nothing, and files from a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from docsite.links import problems

pytestmark = pytest.mark.slow


def site(folder: Path, **pages: str) -> Path:
    for name, body in pages.items():
        (folder / f"{name}.html").write_text(f"<!doctype html><body>{body}</body>", "utf-8")
    return folder


def test_links_within_a_site(tmp_path: Path) -> None:
    (tmp_path / "a picture.png").write_bytes(b"")
    actual = site(
        tmp_path,
        index='<a href="other.html#there">x</a><img src="a%20picture.png"><a href=".">x</a>'
        '<a href="https://example.org/not-checked">x</a><a href="#"></a><a href="#here" id="here">',
        other='<h2 id="there">x</h2><a href="mailto:someone@example.org">x</a>',
    )
    assert problems(actual) == []


def test_links_to_nothing(tmp_path: Path) -> None:
    actual = site(
        tmp_path,
        index='<a href="gone.html">x</a><a href="other.html#gone">x</a><img src="gone.png">',
        other='<a href="#gone">x</a><a href="../outside.html">x</a>',
    )
    assert problems(actual) == [
        "index.html: nothing at gone.html",
        "index.html: no anchor at other.html#gone",
        "index.html: nothing at gone.png",
        "other.html: no anchor at #gone",
        "other.html: nothing at ../outside.html",
    ]


def test_files_from_a_network_are_found(tmp_path: Path) -> None:
    loaded = "https://example.org/x"
    actual = site(
        tmp_path,
        index=f'<script src="{loaded}"></script><link rel="stylesheet" href="{loaded}">'
        '<img src="//example.org/x.png"><link rel="canonical" href="https://example.org/">',
    )
    assert problems(actual) == [
        f"index.html: loads {loaded} from a network",
        f"index.html: loads {loaded} from a network",
        "index.html: loads //example.org/x.png from a network",
    ]
