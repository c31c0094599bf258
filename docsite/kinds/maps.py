"""A page per map: its formula, where it comes from, its codebooks as curves and numbers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from docsite.page import CLASS_ALONE, Page, docstring_of, first_sentence, source, table
from docsite.pictures import curves
from qmaps.maps import REGISTRY, Codebook, FittedMap, Map
from qmaps.normalize import BlockWise

TITLE = "Maps"
WIDTHS = (4, 8)
"""Widths of the example maps; a map without one shows its nearest width."""


def pages() -> list[Page]:
    """One page for all maps, and one for each."""
    classes = sorted(REGISTRY.values(), key=lambda cls: cls.spec_name.lower())
    return [_index(classes), *map(_page, classes), _codebook()]


def _index(classes: list[type[Map]]) -> Page:
    rows = [
        (
            f"[`{cls.spec_name}`]({_stem(cls)}.md)",
            first_sentence(sys.modules[cls.__module__].__doc__),
            ", ".join(f"{_span(cls.widths_of(sign))} {'s' if sign else 'u'}" for sign in cls.signs),
            "fitted to each tensor" if cls.fitted else "",
        )
        for cls in classes
    ]
    shown = tuple(instance(cls, WIDTHS[0], cls.signs[0]) for cls in classes)
    text = (
        "# Maps\n\nA map has a codebook: code `c` decodes to the value `codebook[c]`. A "
        "[normalizer](../normalizers/index.md) divides a tensor by scales until the codebook "
        "covers it. Every map works with every normalizer. Widths are in bits, `s` is signed and "
        "`u` unsigned.\n\n"
        f"{table(['map', 'definition', 'widths', ''], rows)}\n"
        "The maps in 4 bits, or their nearest width. Fitted maps are fitted to normal values in "
        "blocks of 128.\n\n"
        "![All maps](curves.svg)\n\n"
        "[Your own codebook](codebook.md) is a map too. Your own class of maps needs one file; "
        "`qmaps maps`, every spec, every figure and these pages then include it.\n"
    )
    return Page("maps/index.md", "All maps", text, {"maps/curves.svg": curves(shown)})


def _page(cls: type[Map]) -> Page:
    module = sys.modules[cls.__module__]
    examples = list(_examples(cls))
    books = [f"`{map_.spec}`\n\n{_numbers(map_)}" for map_ in examples if map_.bits <= WIDTHS[0]]
    fitted = " Fitted to 4096 normal values in blocks of 128." if cls.fitted else ""
    text = "\n".join(
        [
            f"# `{cls.spec_name}`",
            "",
            f"{first_sentence(module.__doc__)}.",
            "",
            f"![Codebooks of {cls.spec_name}]({_stem(cls)}.svg)",
            "",
            f"Values by code, and their magnitudes.{fitted}",
            "",
            docstring_of(f"{cls.__module__}.{cls.__qualname__}", **CLASS_ALONE),
            *(["## Codebooks in numbers", "", *books] if books else []),
            "",
            source(Path(module.__file__ or "")),
        ]
    )
    files = {f"maps/{_stem(cls)}.svg": curves(tuple(examples))}
    return Page(f"maps/{_stem(cls)}.md", cls.spec_name, text, files)


def _codebook() -> Page:
    values = [-1, -0.5, -0.1, 0, 0.1, 0.5, 1]
    text = f"""# Your own codebook

```pycon
>>> mine = qmaps.Codebook({values}, label="mine")
>>> q = qmaps.quantizer("B128/mine@3s", codebooks=[mine])
```

![The codebook](codebook.svg)

{docstring_of("qmaps.Codebook", **CLASS_ALONE)}
"""
    files = {"maps/codebook.svg": curves((Codebook(values, label="mine"),))}
    return Page("maps/codebook.md", "Your own", text, files)


def _examples(cls: type[Map]) -> Iterator[Map]:
    """Maps of a class in 4 and 8 bits, signed and unsigned, or of the nearest widths."""
    for sign in sorted(cls.signs, reverse=True):
        for bits in sorted({cls.near(width, sign).bits for width in WIDTHS}):
            yield instance(cls, bits, sign)


def instance(cls: type[Map], bits: int, signed: bool) -> Map:
    """The map of the nearest width, fitted to normal values if it is a fitted one."""
    map_ = cls.near(bits, signed)
    if not isinstance(map_, FittedMap):
        return map_
    values = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    return (BlockWise(128) / map_).fit(values if signed else values.abs()).map


def _span(widths: range) -> str:
    return str(widths[0]) if len(widths) == 1 else f"{widths[0]} to {widths[-1]}"


def _numbers(map_: Map) -> str:
    return "```text\n" + "\n".join(_lines([f"{v:.6g}" for v in map_.codebook().tolist()])) + "\n```"


def _lines(numbers: list[str]) -> Iterator[str]:
    for start in range(0, len(numbers), 6):
        yield "  ".join(f"{number:>9}" for number in numbers[start : start + 6])


def _stem(cls: type[Map]) -> str:
    return cls.__module__.rsplit(".", 1)[1]
