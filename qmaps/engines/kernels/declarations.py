"""Declarations of the headers in ``rules``, and numbers shared by C++, CUDA and Python.

This module makes text compiled as C++ and CUDA: the native engine when it is built, by
``python declarations.py rules FILE``, and CUDA kernels when they are compiled. It imports nothing
of qmaps, since an isolated build has no torch. ``declare.hpp`` describes the declarations.
"""

from __future__ import annotations

import re
import runpy
import sys
from dataclasses import dataclass
from enum import Enum, IntEnum, IntFlag
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "rules"
INCLUDED_FROM = "qmaps/engines/kernels/rules"
"""The folder of the headers, as C++ includes them."""


class Flags(IntFlag):
    """Flags of an engine for the input of `quantize`."""

    NON_FINITE = 1
    NEGATIVE = 2


class Factoring(IntEnum):
    """Kind of factored statistics of a rule."""

    NOT_FACTORED = 0
    PRODUCT = 1
    SMALLEST = 2


class Dtype(IntEnum):
    """Dtypes of elements in the native engine."""

    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2


SCALE_KINDS = Path(__file__).resolve().parents[2] / "normalize" / "scale_kind.py"
ScaleKind: Any = runpy.run_path(str(SCALE_KINDS))["ScaleKind"]
"""`qmaps.normalize.scale_kind.ScaleKind`, read without importing qmaps."""

ENUMERATIONS: tuple[type[Enum], ...] = (Flags, Factoring, Dtype, ScaleKind)


@dataclass(frozen=True)
class KernelRule:
    """An update rule with one set of states, as a header declares it.

    Attributes:
        states: the names of its states; "factored" stands for all with fewer elements than the
            parameter.
        scalars: the names of its step scalars, in the order of kernels' arguments.
        type: the C++ type, such as ``"Lars<true>"``.
        takes_norms: whether it takes norms of whole tensors.
        factoring: how it combines the states called "factored".
    """

    name: str
    states: tuple[str, ...]
    scalars: tuple[str, ...]
    type: str
    takes_norms: bool
    factoring: Factoring


def read_rules(folder: Path = FOLDER) -> tuple[KernelRule, ...]:
    """Rules declared in the headers of a folder, in the order of the headers.

    Raises:
        ValueError: a declaration cannot be read, names undeclared scalars, or is there twice.
    """
    made: dict[tuple[str, tuple[str, ...]], KernelRule] = {}
    scalars: dict[str, tuple[str, ...]] = {}
    for header in headers(folder):
        for kind, arguments in _declarations(header):
            try:
                if kind == "SCALARS":
                    name, *names = arguments.split(",")
                    scalars[name] = tuple(scalar.strip() for scalar in names)
                elif kind == "SAME_SCALARS":
                    name, original = arguments.split(",")
                    scalars[name] = scalars[original.strip()]
                else:
                    rule = _rule(arguments, scalars)
                    if (key := (rule.name, rule.states)) in made:
                        raise ValueError("the rule is declared twice")
                    made[key] = rule
            except (KeyError, ValueError) as error:
                raise ValueError(
                    f"{header.name}: QMAPS_{kind}({arguments}) cannot be read: {error}"
                ) from error
    return tuple(made.values())


def headers(folder: Path = FOLDER) -> list[Path]:
    """The headers of a folder in the order of inclusion.

    Shared headers without rules come first; both kinds are sorted by name.
    """
    paths = sorted(folder.glob("*.hpp"))
    return sorted(paths, key=lambda header: any(k == "RULE" for k, _ in _declarations(header)))


def includes(folder: Path = FOLDER) -> str:
    """C++ includes of every header of a folder, for namespace ``qmaps``."""
    lines = (f'#include "{INCLUDED_FROM}/{header.name}"' for header in headers(folder))
    return "\n".join(lines) + "\n"


def rules_text(folder: Path = FOLDER) -> str:
    """`includes`, and the macro ``QMAPS_EVERY_RULE(ENTRY)``: an ENTRY of the type of each rule."""
    entries = "".join(f" \\\n    ENTRY({rule.type})" for rule in read_rules(folder))
    return f"{includes(folder)}\n#define QMAPS_EVERY_RULE(ENTRY){entries}\n"


def enumeration(kind: type[Enum], name: str | None = None) -> str:
    """The C++ of an enumeration: ``NON_FINITE`` of `Flags` becomes ``kNonFinite``."""
    members = ", ".join(f"{_enumerator(member)} = {member.value}" for member in kind)
    return f"enum {name or kind.__name__} : int {{ {members} }};\n"


def enumerations() -> str:
    """The C++ of all `ENUMERATIONS`, and the number of bytes of a scale by its kind."""
    sizes = ", ".join(str(kind.nbytes) for kind in ScaleKind)
    return "".join(map(enumeration, ENUMERATIONS)) + (
        "constexpr int scale_bytes(int kind) {\n"
        f"    constexpr int bytes[] = {{{sizes}}};\n    return bytes[kind];\n}}\n"
    )


def _enumerator(member: Enum) -> str:
    """The name of a member in C++: ``kFloat32`` of `Dtype`, ``kScaleFloat32`` of `ScaleKind`."""
    return in_cpp(f"SCALE_{member.name}" if isinstance(member, ScaleKind) else member.name)


def enumerations_text() -> str:
    """All `ENUMERATIONS`, and ``kEnumerators``, a list of them for the Python module."""
    rows = "".join(
        f'    {{"{kind.__name__}", "{member.name}", {_enumerator(member)}}},\n'
        for kind in ENUMERATIONS
        for member in kind
    )
    return (
        "#pragma once\n\nnamespace qmaps {\n\n"
        + enumerations()
        + "\nstruct Enumerator {\n    const char* enumeration;\n    const char* name;\n"
        + "    int value;\n};\n"
        + f"inline constexpr Enumerator kEnumerators[] = {{\n{rows}}};\n\n}}  // namespace qmaps\n"
    )


def in_cpp(name: str) -> str:
    """The name of a constant in C++.

    >>> in_cpp("MAX_PARTS")
    'kMaxParts'
    """
    return "k" + "".join(word.capitalize() for word in name.split("_"))


def _declarations(header: Path) -> list[tuple[str, str]]:
    """The macros of a header: SCALARS, SAME_SCALARS or RULE, and their arguments."""
    text = header.read_text(encoding="utf-8")
    macros = re.findall(r"^QMAPS_(SCALARS|SAME_SCALARS|RULE)\((.*?)\)$", text, re.M | re.S)
    if len(macros) != len(re.findall(r"^\s*QMAPS_(?:SCALARS|SAME_SCALARS|RULE)\b", text, re.M)):
        raise ValueError(f"{header.name}: a declaration does not begin or end its line")
    return [(kind, " ".join(arguments.split())) for kind, arguments in macros]


def _rule(arguments: str, scalars: dict[str, tuple[str, ...]]) -> KernelRule:
    name, states, factoring, norms, type_ = (text.strip() for text in arguments.split(",", 4))
    if not re.fullmatch(r'"[\w ]*"', states):
        raise ValueError("its states are names between quotation marks")
    return KernelRule(
        name,
        tuple(states[1:-1].split()),
        scalars[name],
        type_,
        {"kNoNorms": False, "kTakesNorms": True}[norms],
        {in_cpp(kind.name): kind for kind in Factoring}[factoring],
    )


def main(what: str, to: str) -> None:
    """Write generated C++ for the build to a file: ``"rules"`` or ``"enumerations"``."""
    text = {"rules": rules_text, "enumerations": enumerations_text}[what]()
    path = Path(to)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"// Made by qmaps/engines/kernels/declarations.py.\n{text}", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
