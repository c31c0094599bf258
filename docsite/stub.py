"""The signatures of the C++ engine's module, as a stub file for type checkers.

``python -m docsite.stub`` writes ``qmaps/engines/native/_core.pyi`` from the module of the last
build; a test fails where the file is not up to date.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

from docsite.page import ROOT

MODULE = "qmaps.engines.native._core"
FILE = ROOT / "qmaps" / "engines" / "native" / "_core.pyi"


def stub() -> str:
    """Return the stub of the built module, without the name of the compiler."""
    from nanobind.stubgen import StubGen

    generator = StubGen(importlib.import_module(MODULE))
    generator.put(generator.module)
    return re.sub(r"^compiler: str = .*$", "compiler: str", generator.get(), flags=re.MULTILINE)


def main() -> int:
    """Write the stub, formatted."""
    formatted = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(FILE), "-"],
        input=stub(),
        capture_output=True,
        text=True,
        check=True,
    )
    FILE.write_text(formatted.stdout, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
