"""Docstrings as Markdown, with doctests as fenced code."""

from __future__ import annotations

from typing import Any

import griffe

from docsite.page import fenced


class Doctests(griffe.Extension):
    """Fences the doctests of every docstring in griffe's tree."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
