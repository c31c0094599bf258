"""The architecture: few entries, a sentence for each, and no import cycle."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import qmaps
from qmaps.optim.rule import UpdateRule

PACKAGE = Path(qmaps.__file__).parent


def entries() -> list[Path]:
    return [path for path in sorted(PACKAGE.iterdir()) if path.name != "__pycache__"]


def test_each_entry_has_a_sentence() -> None:
    for entry in entries():
        if entry.suffix != ".typed":
            source = entry if entry.is_file() else entry / "__init__.py"
            first = (ast.get_docstring(ast.parse(source.read_text())) or "").partition("\n")[0]
            assert first.endswith("."), f"{entry.name}: {first!r}"


def imported(source: Path, modules: set[str]) -> Iterator[str]:
    """Modules imported by a file, in functions and for type checkers too."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                qualified = f"{node.module}.{name.name}"
                yield from [module for module in (qualified, node.module) if module in modules][:1]


def upward() -> set[tuple[str, str]]:
    """Imports of a layer above, in public methods and operators."""
    settings = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    (layers,) = [
        contract
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    ]
    return {tuple(pair.split(" -> ")) for pair in layers["ignore_imports"]}


def test_no_import_circle() -> None:
    files = {}
    for root in (PACKAGE, PACKAGE.parent / "reproduction"):
        for path in root.rglob("*.py"):
            name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
            files[name.removesuffix(".__init__")] = path
    graph, exceptions = defaultdict(set), upward()
    for name, path in files.items():
        # A package's own file is run before its modules; they may import it, if it does not them.
        graph[name] = set(imported(path, set(files))) - {name}
        graph[name] -= {target for source, target in exceptions if source == name}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError with one cycle
    assert len(order) == len(files) > 200


def test_engines_do_not_name_optimizers() -> None:
    for folder in ("engines", "cuda"):
        for path in (PACKAGE / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                named = getattr(node, "module", None) if isinstance(node, ast.ImportFrom) else None
                assert not str(named).startswith("qmaps.optim"), path.name


AUTHORS = 12
"""Largest number of members for an author of an update rule."""
LARGEST = 300
"""Largest number of lines of a class without docstrings."""


def test_an_author_of_a_rule_has_few_members_to_learn() -> None:
    members = {*vars(UpdateRule), *UpdateRule.__annotations__}
    public = sorted(name for name in members if not name.startswith("_"))
    assert len(public) <= AUTHORS, public


def lines_of_code(node: ast.ClassDef) -> int:
    """The lines of a class without its docstrings."""
    inside = [
        inner for inner in ast.walk(node) if isinstance(inner, (ast.ClassDef, ast.FunctionDef))
    ]
    texts = [inner.body[0] for inner in inside if ast.get_docstring(inner)]
    assert node.end_lineno
    lines = node.end_lineno - node.lineno + 1
    return lines - sum((text.end_lineno or 0) - text.lineno + 1 for text in texts)


def test_no_class_is_a_house_of_its_own() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                assert lines_of_code(node) <= LARGEST, f"{path.name}: {node.name}"


FACTORIES = {"tensor", "as_tensor", "asarray", "scalar_tensor", "zeros", "ones", "empty", "full",
             "eye", "linspace", "logspace", "normal", "rand", "randn", "Tensor"}  # fmt: skip
"""Functions of torch with the dtype of ``torch.set_default_dtype`` by default."""


def test_new_tensors_have_a_dtype() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("torch."):
                named = {keyword.arg for keyword in node.keywords} & {"dtype", None}
                factory = ast.unparse(node.func).removeprefix("torch.") in FACTORIES
                assert named or not factory, f"{path.name}:{node.lineno}: {ast.unparse(node)}"
