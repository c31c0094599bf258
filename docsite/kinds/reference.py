"""Everything else that is public, from the docstrings; and the command line."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import qmaps
from docsite.page import Page, docstring_of, fenced, first_sentence, table

TITLE = "Modules"
ELSEWHERE = {f"qmaps.{name}" for name in ("maps", "normalize", "optim", "figures", "cli")}
"""Packages that have pages of their own."""
ALONE = ("qmaps.analyze.states", "qmaps.errors", "qmaps.figures.style", "qmaps.nn",
         "qmaps.ops.quantiles", "qmaps.storage.checkpoint")  # fmt: skip
"""Public modules that are no packages."""


def pages() -> list[Page]:
    """One page for each public package and module, and one for the command line."""
    modules_pages = [_module(qmaps, "qmaps"), *(_module(m, m.__name__) for m in modules())]
    rows = [
        (f"[`{page.title}`]({page.path.rsplit('/', 1)[1]})", _about(page)) for page in modules_pages
    ]
    text = f"# Modules\n\n{table(['module', ''], rows)}\n[The command line](cli.md).\n"
    return [Page("reference/index.md", "All modules", text), *modules_pages, _command_line()]


def modules() -> list[ModuleType]:
    """Packages that say what they export, up to one within another, and the modules of `ALONE`."""
    public = []
    for name in sorted({*_packages("qmaps", qmaps), *ALONE}):
        module = importlib.import_module(name)
        if hasattr(module, "__all__"):
            public.append(module)
    return public


def _packages(name: str, package: ModuleType) -> Iterator[str]:
    for info in pkgutil.iter_modules(package.__path__, f"{name}."):
        if info.ispkg and info.name not in ELSEWHERE:
            yield info.name
            if package is qmaps:
                yield from _packages(info.name, importlib.import_module(info.name))


def exported(module: ModuleType) -> list[str]:
    """Names of classes, functions and constants; modules have pages of their own."""
    return [
        name for name in module.__all__
        if name[0] != "_" and not inspect.ismodule(getattr(module, name, None))
    ]  # fmt: skip


def _module(module: ModuleType, name: str) -> Page:
    parts = [docstring_of(f"{name}.{member}", heading_level=2) for member in exported(module)]
    text = "\n".join([f"# `{name}`", "", _prose(module), "", *parts])
    return Page(f"reference/{name}.md", name, text)


def _prose(module: ModuleType) -> str:
    return fenced(inspect.getdoc(module) or "")


def _about(page: Page) -> str:
    return first_sentence(page.text.split("\n", 1)[1])


def _command_line() -> Page:
    """`qmaps --help` and its like, as Markdown by typer itself."""
    command = [sys.executable, "-m", "typer", "qmaps.cli", "utils", "docs", "--name", "qmaps"]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return Page(
        "reference/cli.md", "Command line", made.replace("# `qmaps`", "# The command line", 1)
    )
