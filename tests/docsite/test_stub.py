"""The stub of the C++ engine's module has the names and signatures of the built module."""

from __future__ import annotations

import ast

import pytest

from docsite import stub
from qmaps.engines import native

pytestmark = pytest.mark.slow


def signatures(text: str) -> str:
    """The code of a stub: docstrings and layout do not count."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            if ast.get_docstring(node) is not None:
                node.body[0] = ast.Expr(ast.Constant(...))
            elif not node.body:
                node.body.append(ast.Expr(ast.Constant(...)))
    return ast.unparse(tree)


@pytest.mark.skipif(native.core is None, reason="the native engine is not built")
def test_the_stub_is_up_to_date() -> None:
    assert signatures(stub.FILE.read_text(encoding="utf-8")) == signatures(stub.stub())


@pytest.mark.skipif(native.core is None, reason="the native engine is not built")
def test_all_names_of_the_module_are_in_the_stub() -> None:
    tree = ast.parse(stub.FILE.read_text(encoding="utf-8"))
    names = {getattr(node, "name", None) for node in tree.body}
    names |= {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
    assert {name for name in dir(native.core) if not name.startswith("_")} <= names
