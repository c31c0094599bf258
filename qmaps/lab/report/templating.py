"""Templates of pages; those of this package are there for every page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

import jinja2

from qmaps.lab.report.table import css

OWN = "qmaps.lab.report"


def template(
    name: str, package: str = OWN, filters: Mapping[str, Callable[..., Any]] | None = None
) -> jinja2.Template:
    """Return ``NAME.html.jinja`` of a package's folder ``templates``.

    Args:
        name: the template's name.
        package: the package. Templates that it does not have are those of `qmaps.lab.report`.
        filters: further filters by name.
    """

    def source(file: str) -> str | None:
        for place in dict.fromkeys((package, OWN)):
            path = resources.files(place).joinpath("templates", file)
            if path.is_file():
                return path.read_text(encoding="utf-8")
        return None

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(source),
    )
    environment.filters |= {"css": css, **(filters or {})}
    environment.globals["zip"] = zip
    return environment.get_template(f"{name}.html.jinja")
