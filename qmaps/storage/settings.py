"""Settings in a file: JSON, or YAML where PyYAML is installed."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from qmaps.errors import BadValueError, QmapsError, nearest, shown
from qmaps.storage.files import content_of

ALIASED = 10_000
"""Values that the aliases of a YAML file may stand for, at most."""


SUFFIXES = (".json", ".yaml", ".yml")
"""Endings of the files' names."""


def yaml_of(path: Path) -> ModuleType | None:
    """Return PyYAML for a file that ends in ``.yaml`` or ``.yml``, None for ``.json``.

    Raises:
        BadValueError: another ending, or PyYAML is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise BadValueError(f"path={str(path)!r} must end in .json, .yaml or .yml")
    if path.suffix == ".json":
        return None
    try:
        return importlib.import_module("yaml")
    except ImportError:
        raise BadValueError(
            f"path={str(path)!r} needs PyYAML, which is not installed (pip install pyyaml); "
            "JSON needs nothing"
        ) from None


def read(path: Path, yaml: ModuleType | None, kind: str, limit: float = math.inf) -> dict[Any, Any]:
    """Return the dict in a file, by the result of `yaml_of`; `kind` is for the error message.

    Raises:
        BadValueError: the file cannot be read, has more than `limit` bytes, is damaged, or has a
            key twice.
    """
    try:
        text = content_of(path, limit).decode()
    except OSError as error:
        raise BadValueError(f"it cannot be read ({error.strerror})") from None
    except ValueError:
        text = "\0"
    try:
        if yaml is None:
            plain = json.loads(text, object_pairs_hook=_unique)
        else:
            plain = _read_yaml(yaml, text)
    except (QmapsError, MemoryError):
        raise
    except Exception:  # PyYAML's errors have no base that is known here
        plain = None
    if not isinstance(plain, dict):
        expected = path.suffix[1:].upper()
        raise BadValueError(f"it is damaged or no {kind}; expected {expected}, a dict")
    return plain


def check_keys(plain: Mapping[Any, Any], keys: Iterable[str]) -> None:
    """Raise BadValueError unless all keys of a dict are allowed."""
    for key in plain:
        if key not in keys:
            raise BadValueError(
                f"it has the key {shown(key)}; allowed are {', '.join(keys)}"
                f"{nearest(str(key), keys)}"
            )


def _read_yaml(yaml: ModuleType, text: str) -> Any:
    loader = yaml.SafeLoader(text)
    root = loader.get_single_node()
    # Aliases of aliases make a few bytes into more values than any memory holds.
    nodes, values_left = [root] if root else [], len(text) + ALIASED
    while nodes:
        node = nodes.pop()
        values_left -= 1
        if values_left < 0:
            raise BadValueError("its aliases stand for too many values; write them out")
        if isinstance(node.value, list):
            pairs = [member for member in node.value if isinstance(member, tuple)]
            _unique([(key.value, value) for key, value in pairs])
            nodes += [member for pair in pairs for member in pair] or node.value
    return loader.construct_document(root) if root else None


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """A dict of `pairs`; raise if a key is repeated."""
    unique: dict[Any, Any] = {}
    for key, value in pairs:
        if key in unique:
            raise BadValueError(f"it has the key {shown(key)} twice in one dict")
        unique[key] = value
    return unique
