"""Maps of the user's own in files: Python that declares them, and codebooks as JSON."""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from qmaps import maps, normalize
from qmaps.algebra.quantizer import Quantizer
from qmaps.errors import BadTypeError, BadValueError, QmapsError, shown
from qmaps.maps.base import Map, table
from qmaps.maps.codebook import Codebook
from qmaps.storage import settings
from qmaps.storage.files import content_of

LARGEST = 2**24
"""Bytes of a file, at most."""
KEYS = ("label", "values", "signed", "bits")
"""Keys of a codebook's file."""

LOADED: dict[Path, tuple[Codebook, ...]] = {}
"""Files that this process has run, and the codebooks in them."""


def load_files(paths: Iterable[str | os.PathLike[str]]) -> list[Codebook]:
    """Run Python files that declare maps or normalizers, each once, and return their codebooks.

    Maps and normalizers register themselves by their names. A codebook is found if a name of the
    module is bound to it. A file may import modules beside it.

    Raises:
        BadValueError: a file cannot be read, is no Python, raises an error, declares nothing, or
            declares a map without a codebook.
    """
    return [book for path in paths for book in _load(Path(path))]


def own_values(quantizers: Iterable[Quantizer | None]) -> list[str]:
    """Texts that differ if the values of the users' maps do, of which a spec has the name alone."""
    return [
        repr(q.map) if isinstance(q.map, Codebook) else f"{q.map}: {table(q.map).tolist()}"
        for q in quantizers
        if q is not None and not type(q.map).fitted
        if isinstance(q.map, Codebook) or not type(q.map).__module__.startswith("qmaps.")
    ]


def _load(path: Path) -> tuple[Codebook, ...]:
    place = Path(os.path.realpath(path))
    if place not in LOADED:
        try:
            LOADED[place] = _run(place)
        except QmapsError as error:
            raise BadValueError(f"load={str(path)!r} {error}") from None
    return LOADED[place]


def _run(path: Path) -> tuple[Codebook, ...]:
    """Run a file as a module of its own; errors are what follows the file's name."""
    try:
        code = compile(content_of(path, LARGEST), str(path), "exec")
    except OSError as error:
        raise BadValueError(f"cannot be read ({error.strerror})") from None
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise BadValueError(f"is no Python ({error.msg}{line})") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise BadValueError(f"is no Python ({error})") from None
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
    # The same name in every process, which finds classes by it.
    module = ModuleType(f"{path.stem}_{digest}")
    module.__file__ = str(path)
    known = {*maps.REGISTRY.values(), *normalize.REGISTRY}
    sys.modules[module.__name__] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        exec(code, vars(module))
    except (Exception, SystemExit) as error:
        raise BadValueError(f"raised {type(error).__name__}: {error}") from None
    books = tuple(value for value in vars(module).values() if isinstance(value, Codebook))
    declared = [cls for cls in (*maps.REGISTRY.values(), *normalize.REGISTRY) if cls not in known]
    if not declared and not books:
        raise BadValueError(
            "declares no map and no normalizer, such as class Cubic(Map, name='cubic'), and no "
            "qmaps.Codebook"
        )
    for cls in declared:
        if issubclass(cls, Map) and not cls.fitted:
            _check(cls)
    return books


def _check(cls: type[Map]) -> None:
    """Raise if a map cannot be made, or has no codebook."""
    try:
        values = cls.near(8).codebook()
        is_sorted = bool(values.isfinite().all()) and bool((values.diff() > 0).all())
    except Exception as error:
        raise BadValueError(
            f"declares the map {cls.spec_name!r}, which raised {type(error).__name__}: {error}"
        ) from None
    if not is_sorted:
        raise BadValueError(
            f"declares the map {cls.spec_name!r}, whose values are not finite and ascending"
        )


def read_codebook(path: str | os.PathLike[str]) -> Codebook:
    """Read a codebook from a file: ``{"label": "mine", "signed": true, "values": [-1, 0, 1]}``.

    Args:
        path: a file ending in ``.json``, ``.yaml`` or ``.yml``. Its `values` are 2 to 65536 finite
            numbers in ascending order. `signed`, `bits` and `label` may be left out, as for
            `qmaps.Codebook`; the label is then the name of the file.

    Raises:
        BadValueError: the file cannot be read, or holds something else.
    """
    source = Path(path)
    try:
        yaml = settings.yaml_of(source)
        plain = settings.read(source, yaml, "codebook", LARGEST)
        settings.check_keys(plain, KEYS)
        if "values" not in plain:
            raise BadValueError("it is no codebook; 'values' is missing")
        options: dict[str, Any] = {key: plain[key] for key in KEYS if key in plain}
        values = _ascending(options.pop("values"))
        return Codebook(values, **{"label": source.stem, **options})
    except QmapsError as error:
        raise BadValueError(f"codebook={str(path)!r}: {error}") from None


def _ascending(values: Any) -> list[float]:
    """The numbers of a file; raise unless they are finite and ascend."""
    if not isinstance(values, list):
        raise BadTypeError(f"values={shown(values)} must be a list of numbers")
    if not 2 <= len(values) <= 65536:
        raise BadValueError(f"values has {len(values)} entries; 2 to 65536 are allowed")
    for place, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise BadTypeError(f"values[{place}]={shown(value)} must be a number")
    numbers = [_float(value) for value in values]
    for place, number in enumerate(numbers):
        if not math.isfinite(number):
            raise BadValueError(f"values[{place}]={shown(values[place])} must be finite")
    for place, (low, high) in enumerate(pairwise(numbers)):
        if low >= high:
            raise BadValueError(
                f"values[{place}]={low!r} and values[{place + 1}]={high!r} must be in ascending "
                "order"
            )
    return numbers


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an int above the largest float
        return math.inf
