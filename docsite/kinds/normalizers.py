"""A page per normalizer: the scale of each element, and the error."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import Tensor

from docsite.page import CLASS_ALONE, Page, docstring_of, first_sentence, source, table
from docsite.pictures import picture
from qmaps.figures.style import style
from qmaps.maps import Linear, Log2
from qmaps.normalize import REGISTRY, BlockWise, Minimum, Normalizer, Rank1
from qmaps.normalize.scale_format import SUFFIXES, ScaleFormat

TITLE = "Normalizers"
SHAPE = (48, 96)
BLOCK = 32
"""Block size of the examples: three blocks a row."""


def pages() -> list[Page]:
    """One page for all normalizers, and one for each."""
    classes = sorted(REGISTRY, key=lambda cls: cls.spec_name.lower())
    shown: list[Normalizer] = [_example(cls) for cls in classes]
    shown += [SUFFIXES[suffix](BlockWise(BLOCK)) for suffix in sorted(SUFFIXES)]
    shown += [Minimum(BlockWise(BLOCK), Rank1())]
    return [_index(shown), *map(_page, shown)]


def _index(shown: list[Normalizer]) -> Page:
    rows = [
        (
            f"[`{_name(part)}`]({_stem(part)}.md)",
            first_sentence(sys.modules[type(part).__module__].__doc__),
            f"{_bits(part):.3g}",
        )
        for part in shown
    ]
    text = f"""# Normalizers

A normalizer divides a tensor by scales until a [map](../maps/index.md)'s codebook covers it. The
scales add bits to the width of the codes. The table shows bits per element for a matrix of 1024 by
1024; blocks have {BLOCK} elements.

{table(["normalizer", "its scales", "bits per element"], rows)}"""
    return Page("normalizers/index.md", "All normalizers", text)


def _page(part: Normalizer) -> Page:
    cls = type(part)
    module = sys.modules[cls.__module__]
    quantizer = part / (Log2(8, False) if part.log_domain else Linear(8, False))
    name = f"{_stem(part)}.svg"
    text = "\n".join(
        [
            f"# `{_name(part)}`",
            "",
            f"{first_sentence(module.__doc__)}.",
            "",
            f"![Scales and errors of {part.spec}]({name})",
            "",
            "A matrix with two outlier columns and an outlier row, the scale of each element under "
            f"`{part.spec}`, and the error of each element under `{quantizer}`.",
            "",
            docstring_of(f"{cls.__module__}.{cls.__qualname__}", **CLASS_ALONE),
            "",
            source(Path(module.__file__ or "")),
        ]
    )
    drawn = {f"normalizers/{name}": picture(_drawn(part, quantizer.quantize(matrix())))}
    return Page(f"normalizers/{_stem(part)}.md", _name(part), text, drawn)


def matrix() -> Tensor:
    """A made-up second moment: positive, over several decades, with outlier columns and a row."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(SHAPE, generator=random).abs() * 1e-2
    x[:, [20, 70]] *= 300
    x[30] *= 100
    return x + 1e-6


def _drawn(part: Normalizer, quantized: object) -> Figure:
    x = matrix()
    scales = part.expand(part.scales(x), SHAPE).expand(SHAPE)
    error = (quantized.dequantize() - x).abs() / x  # type: ignore[attr-defined]
    with style():
        figure = Figure(figsize=(11, 2.5), layout="constrained")
        panels = figure.subplots(1, 3)
        for axis, values, title, limits in (
            (panels[0], x, "value", (x.min(), x.max())),
            (panels[1], scales, "scale", (x.min(), x.max())),
            (panels[2], error, "relative error", (1e-2, 1e1)),
        ):
            low, high = (float(limit) for limit in limits)
            norm = LogNorm(low, high)
            shown = axis.imshow(
                values.clamp(low, high).numpy(), norm=norm, aspect="auto", cmap="cividis"
            )
            axis.set_title(title)
            axis.grid(visible=False)
            figure.colorbar(shown, ax=axis)
    return figure


def _example(cls: type[Normalizer]) -> Normalizer:
    """An instance for the spec name, in blocks of `BLOCK`."""
    example = cls.parse(cls.spec_name.replace("<n>", str(BLOCK)).replace("<k>", "4"))
    assert example is not None, cls.spec_name
    return example


def _name(part: Normalizer) -> str:
    if isinstance(part, ScaleFormat):
        return f"…{part.suffix}"
    return "…&…" if isinstance(part, Minimum) else type(part).spec_name


def _bits(part: Normalizer) -> float:
    scales = part.zero_scales((1024, 1024))
    return 8 * sum(stored.nbytes for stored in scales) / 1024**2


def _stem(part: Normalizer) -> str:
    return type(part).__module__.rsplit(".", 1)[1]
