"""The committed page of the API equals its generator's output."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

import pytest

from docsite import api

pytestmark = pytest.mark.slow

TEXT = api.FILE.read_text("utf-8")


def test_the_page_is_up_to_date() -> None:
    assert api.page() == TEXT, "run `python -m docsite.api`"


def test_public_names_with_signatures_and_links() -> None:
    for line in (
        "- [`quantizer(spec, codebooks=())`](../qmaps/algebra/quantizer.py): Quantizer of a spec.",
        "    - `.bits_per_element`: `8 * nbytes` divided by the number of elements; NaN for an",
        "- [`Rounding`](../qmaps/algebra/rounding.py): Rounding mode of a quantizer;",
        "- [`AdamW(params, lr=0.001, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.01, **shared)`]",
        "- [`Linear(bits, signed=True)`](../qmaps/maps/linear.py): Evenly spaced values that leave",
        "- [`PRESETS`](../qmaps/optim/presets.py): ",
        "- [`StableEmbedding(",
        "- [`sram(x, num=256, chunk=4096, offset=None)`](../qmaps/ops/quantiles.py): ",
        "- [`check_map(map_, device='cpu')`](../qmaps/testing/__init__.py): Check a map.",
    ):
        assert f"\n{line}" in TEXT, line
    assert "## `qmaps.replay`" in TEXT
    assert "## `qmaps.integrations.transformers`" in TEXT
    assert "[`_" not in TEXT


def test_every_name_is_described_and_linked() -> None:
    entries = re.findall(r"^ *- (.*)$", TEXT, re.MULTILINE)
    assert len(entries) > 300
    for entry in entries:
        assert re.search(r"[`)]: .+\.$", entry), entry
    for target in set(re.findall(r"\]\(([^)]+)\)", TEXT)):
        assert (api.FILE.parent / target).is_file(), target


def many(first, *, second="x" * 40, third=None, fourth=(1, 2), fifth=0.5, sixth=1, **rest): ...  # type: ignore[no-untyped-def]


def few(x, /, y=int, *more, z): ...  # type: ignore[no-untyped-def]


@dataclass
class Made:
    size: int = 3


class Kind(Enum):
    ONE = 1


class Odd(UserWarning): ...


def test_signatures_are_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    assert api._signature(few) == "(x, y=..., *more, z)"
    full = "(first, *, second=..., third=None, fourth=(1, 2), fifth=0.5, sixth=1, **rest)"
    assert api._signature(many) == full
    monkeypatch.setattr(api, "LONGEST", 50)
    assert api._signature(many) == "(first, *, second=..., third=None, ...)"
    assert api._signature(Made) == "(size=3)"
    assert not api._has_parameters(Kind)
    assert not api._has_parameters(Odd)


def test_summaries_are_one_sentence() -> None:
    assert api._summary("As ``x``,\nin step 1, 2, ... of it. More.\n\nRest.") == (
        "As `x`, in step 1, 2, ... of it."
    )
    assert api._summary(None) == ""
