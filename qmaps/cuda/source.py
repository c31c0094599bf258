"""C++ source of a file of kernels: the file, and its definitions from Python.

Enumerations and the list of rules are made from Python's tables. The numbers and structures of
`layout` are also defined in ``src``; a kernel compiles only if its definitions equal Python's.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np

from qmaps.cuda import layout
from qmaps.engines.kernels.declarations import enumerations, headers, in_cpp, includes
from qmaps.engines.step_scalars import KINDS

SOURCES = Path(__file__).parent / "src"
NUMBERS = {in_cpp(name): n for name, n in vars(layout).items() if name.isupper() and type(n) is int}
"""The numbers of `layout` by their names in C++."""


@functools.cache
def source_of(file: str) -> str:
    """The C++ to compile for kernels in a file of ``src``.

    Args:
        file: the name of the file, such as "step.cuh".
    """
    shared = enumerations() + _step_scalar_kinds()
    return (
        f"namespace qmaps {{\n{shared}}}\n"
        '#include "language.cuh"\n'
        f"namespace qmaps {{\n{includes()}}}\n"
        f'#include "{file}"\n'
        f"namespace qmaps {{\n{_checks(file)}}}\n"
        "using namespace qmaps;\n"
    )


@functools.cache
def kernels() -> dict[str, str]:
    """The file of ``src`` of each kernel, by its name."""
    found = {}
    for path in sorted(SOURCES.glob("*.cuh")):
        text = path.read_text(encoding="utf-8")
        names = re.findall(r"^__global__ .*?(\w+)\(const", text, re.MULTILINE)
        found.update(dict.fromkeys(names, path.name))
    return found


@functools.cache
def plain_kernels(file: str) -> tuple[str, ...]:
    """The kernels in a file of ``src`` that are no templates; all programs of it contain them."""
    text = (SOURCES / file).read_text(encoding="utf-8")
    return tuple(re.findall(r"(?<!>\n)^__global__ .*?(\w+)\(const", text, re.MULTILINE))


def _step_scalar_kinds() -> str:
    members = ", ".join(f"k{kind.__name__} = {number}" for number, kind in enumerate(KINDS))
    count = f"constexpr int kStepScalarKinds = {len(KINDS)};\n"
    return f"enum StepScalarKind : int {{ {members} }};\n{count}"


def _checks(file: str) -> str:
    """Assertions about the definitions of the file and of its includes."""
    text = _with_included(file)
    numbers = " ".join(re.findall(r"^constexpr (?:int|std::int64_t) ([^;]*);", text, re.MULTILINE))
    lines = [
        _assertion(f"{name} == {NUMBERS[name]}", name)
        for name in re.findall(r"\b(k\w+) =", numbers)
        if name in NUMBERS
    ]
    for name in re.findall(r"^struct (\w+) \{", text, re.MULTILINE):
        if name in layout.STRUCTURES:
            lines += _of_structure(name, layout.STRUCTURES[name])
    return "".join(lines)


def _of_structure(name: str, dtype: np.dtype) -> list[str]:
    made = [_assertion(f"sizeof({name}) == {dtype.itemsize}", name)]
    for field, (_, at, *_) in (dtype.fields or {}).items():
        made.append(_assertion(f"__builtin_offsetof({name}, {field}) == {at}", name))
    # NVRTC 12 has no offsetof; what compiles with it has been checked with others.
    made.insert(1, "#if !defined(__CUDACC_VER_MAJOR__) || __CUDACC_VER_MAJOR__ >= 13\n")
    return [*made, "#endif\n"]


def _assertion(condition: str, name: str) -> str:
    return f'static_assert({condition}, "{name} differs from qmaps/cuda/layout.py");\n'


def _with_included(file: str) -> str:
    """The text of a file of ``src``, of its includes, and of the rules."""
    seen = {header.name: header.read_text(encoding="utf-8") for header in headers()}
    pending = ["language.cuh", file]
    while pending:
        name = pending.pop()
        if name not in seen and (SOURCES / name).exists():
            seen[name] = (SOURCES / name).read_text(encoding="utf-8")
            pending += re.findall(r'^#include "(\w+\.cuh)"', seen[name], re.MULTILINE)
    return "\n".join(seen.values())
