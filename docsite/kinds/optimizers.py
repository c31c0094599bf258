"""A page per optimizer: its rule, its states and codebooks in each width."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from docsite.page import CLASS_ALONE, ROOT, Page, docstring_of, first_sentence, source, table
from docsite.pictures import curves
from qmaps import optim
from qmaps.algebra.quantizer import quantizer
from qmaps.optim import QuantizedOptimizer
from qmaps.optim.base import FixedWidth
from qmaps.optim.memory import StateMemory

TITLE = "Optimizers"
RULES = ROOT / "qmaps" / "engines" / "kernels" / "rules"
Family = list[type[QuantizedOptimizer]]


def pages() -> list[Page]:
    """One page for all, and one for each rule with its 8-bit and 4-bit classes."""
    rule_families = families()
    return [_index(rule_families), *map(_page, rule_families), _base()]


def families() -> list[Family]:
    """The classes of each rule; first the class of any quantizers."""
    classes = [getattr(optim, name) for name in optim.__all__]
    optimizers = [
        cls for cls in classes if inspect.isclass(cls) and issubclass(cls, QuantizedOptimizer)
    ]
    rules = [cls for cls in optimizers if cls is not QuantizedOptimizer]
    full = sorted(
        (cls for cls in rules if not issubclass(cls, FixedWidth)), key=lambda c: c.__name__.lower()
    )
    return [[cls, *(c for c in rules if issubclass(c, FixedWidth) and _rule(c) is cls)]
            for cls in full]  # fmt: skip


def _rule(cls: type[QuantizedOptimizer]) -> type[QuantizedOptimizer]:
    """The class of any quantizers from which a class of one width derives."""
    bases = (base for base in cls.__mro__ if issubclass(base, QuantizedOptimizer))
    return next(base for base in bases if not issubclass(base, FixedWidth))


def _index(rule_families: list[Family]) -> Page:
    rows = [
        (
            f"[`{family[0].__name__}`]({_stem(family[0])}.md)",
            ", ".join(f"`{state}`" for state in states(family[0])),
            ", ".join(f"`{cls.__name__}`" for cls in family[1:]) or "",
            "C++ and CUDA engines" if family[0].native_rule else "reference",
        )
        for family in rule_families
    ]
    text = (
        "# Optimizers\n\nEach rule accepts any quantizer for its states, by `state_quantizers`; "
        "the default is 32 bits. Classes of one width choose the quantizers. Choosing, saving, "
        "loading and counting states works [alike in all of them](base.md).\n\n"
        f"{table(['rule', 'states', 'of one width', 'runs on'], rows)}"
    )
    return Page("optimizers/index.md", "All optimizers", text)


def _page(family: Family) -> Page:
    cls = family[0]
    module = sys.modules[cls.__module__]
    name = _stem(cls)
    maps = tuple({quantizer(spec).map: None for spec in _specs(family)})
    drawn = [f"![Codebooks of its states]({name}.svg)", "", "Codebooks of these states.", ""]
    rows = [
        (f"`{c.__name__}`", f"`{row.state}`",
         f"`{row.quantizer}`" if row.quantizer else f"32 bits: {row.why}",
         f"{8 * row.nbytes / 256**2:.3g}")
        for c in family for row in _memory(c)
    ]  # fmt: skip
    text = "\n".join(
        [
            f"# {cls.__name__}",
            "",
            f"{first_sentence(module.__doc__)}.",
            "",
            "## States",
            "",
            "Bits per element of the parameter, for a matrix of 256 by 256:",
            "",
            table(["class", "state", "quantizer", "bits"], rows),
            *(drawn if maps else []),
            *(
                docstring_of(f"{c.__module__}.{c.__qualname__}", heading_level=2, **CLASS_ALONE)
                for c in family
            ),
            source(Path(module.__file__ or "")),
            *(source(path, "cpp") for path in _engines_rule(cls)),
        ]
    )
    files = {f"optimizers/{name}.svg": curves(maps)} if maps else {}
    return Page(f"optimizers/{name}.md", cls.__name__, text, files)


def _base() -> Page:
    names = [
        name
        for name in ("QuantizedOptimizer", "State", "param_groups", "keep_in_32_bits", "PRESETS",
                     "Choice", "CPUOffloadOptimizer")
        if name in optim.__all__
    ]  # fmt: skip
    shown = "\n".join(docstring_of(f"qmaps.optim.{name}", heading_level=2) for name in names)
    return Page("optimizers/base.md", "Common API", f"# API common to all optimizers\n\n{shown}")


def states(cls: type[QuantizedOptimizer]) -> list[str]:
    """Names of the states of a matrix."""
    return [row.state for row in _memory(cls)]


@functools.cache
def _memory(cls: type[QuantizedOptimizer]) -> tuple[StateMemory, ...]:
    """States of a matrix after a step, with momentum if the class has that option."""
    option = {"momentum": 0.9} if "momentum" in inspect.signature(_rule(cls)).parameters else {}
    matrix = torch.nn.Parameter(torch.zeros(256, 256))
    optimizer = cls([matrix], **option)
    matrix.grad = torch.ones_like(matrix)
    optimizer.step()
    return optimizer.memory().rows


def _specs(family: Family) -> Iterator[str]:
    return (row.quantizer for cls in family for row in _memory(cls) if row.quantizer)


def _engines_rule(cls: type[QuantizedOptimizer]) -> list[Path]:
    """The header of the rule in the engines; AdamW's is in that of Adam."""
    stems = [_stem(base) for base in cls.__mro__ if base.__module__.startswith("qmaps.optim.")]
    headers = [path for stem in stems if (path := RULES / f"{stem}.hpp").exists()]
    return headers[:1] if cls.native_rule else []


def _stem(cls: type) -> str:
    return cls.__module__.rsplit(".", 1)[1]
