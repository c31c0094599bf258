"""Spec strings such as ``B128/DE@4s``, ``B32x8&rank1/linear@4u+sr``.

``NORM[SUFFIX]["&"NORM[SUFFIX]]"/"[TRANSFORM":"]MAP["("field=value,...")"]"@"BITS["s"|"u"][ROUNDING]``,
read without regard to case and written in one canonical form. A suffix such as ``x8`` names
the format of stored scales (`qmaps.normalize.scale_format`). A transform such as ``sqrt`` may
come before the map (`qmaps.maps.transformed`). A rounding is ``+sr`` or ``+qsr``
(`qmaps.algebra.rounding`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import MISSING, fields
from typing import Any

from qmaps import maps, normalize
from qmaps.algebra.rounding import REMOVED, Rounding
from qmaps.algebra.rounding import SUFFIXES as ROUNDINGS
from qmaps.errors import BadValueError, SpecError, UnknownPartError, nearest, shown
from qmaps.maps._transforms import named, written
from qmaps.maps.codebook import Codebook
from qmaps.maps.transformed import Transformed
from qmaps.normalize.base import Minimum
from qmaps.normalize.scale_format import SUFFIXES

SHORT = {"bf16": "unscaled/bf16@16s", "fp16": "unscaled/fp16@16s"}
"""Specs with a short form, which may be followed by a rounding."""

OTHER_NAMES = {
    "int8": "B256/linear0@8s",
    "uint8": "B256/linear0@8u",
    "int4": "B128/linear0@4s",
    "uint4": "B128/linear0@4u",
    "fp8": "tensor/e4m3@8s",
    "fp4": "B16/e2m1@4s",
    "nf4": "B64/nf4@4s",
}
"""Names of number formats, and a spec of each for error messages."""

LONGEST = 500
"""Characters of a spec, at most."""

LOW_RANK = "lowrank<k>(SPEC)+SPEC"
"""Form of a spec with a low-rank part (`qmaps.algebra.low_rank`)."""

_ENDS = "|".join(f'"{suffix}"' for suffix in ROUNDINGS)
GRAMMAR = f'NORM[SUFFIX]["&"NORM[SUFFIX]]/[TRANSFORM:]MAP@BITS["s"|"u"][{_ENDS}]'

_MAP = r"(?P<map>[^@/()]+)(?:\((?P<fields>[^()]*)\))?@(?P<bits>\d+)(?P<sign>[su]?)"
_FLAGS = re.IGNORECASE | re.ASCII
_LOW_RANK_BEGIN = re.compile(r"lowrank\d+\(", _FLAGS)
_LOW_RANK = re.compile(r"lowrank(\d+)\((.*)\)\+(.*)", _FLAGS | re.DOTALL)
_ONE_MAP = re.compile(_MAP, _FLAGS)
_ROUNDING = "|".join(map(re.escape, (*ROUNDINGS, *REMOVED)))
_SPEC = re.compile(rf"(?P<norm>[^/]+)/{_MAP}(?P<rounding>{_ROUNDING})?", _FLAGS)


def parse(
    spec: str, codebooks: Iterable[Codebook] = ()
) -> tuple[normalize.Normalizer, maps.Map, Rounding]:
    """Normalizer, map and rounding.

    Raises:
        SpecError: names the spec, the wrong part, the allowed values, and the nearest match.
    """
    stripped = spec.strip()
    if len(stripped) > LONGEST:
        raise SpecError(
            f"spec={shown(spec)} has {len(stripped)} characters; at most {LONGEST} are allowed"
        )
    name, *end = stripped.lower().partition("+")
    match = _SPEC.fullmatch(SHORT[name] + "".join(end) if name in SHORT else stripped)
    if match is None:
        other = OTHER_NAMES.get(name)
        hint = f"; a spec of {name} is {other}" if other else ""
        raise SpecError(
            f"spec={shown(spec)} does not have the form {GRAMMAR}, such as B128/DE@4s{hint}"
        )
    try:
        rounding = Rounding((match["rounding"] or "").lower())
        normalizer = parse_normalizer(match["norm"])
        map_ = _map(match, codebooks)
    except UnknownPartError as error:
        raise UnknownPartError(f"spec={shown(spec)}: {error}") from None
    except BadValueError as error:
        raise SpecError(f"spec={shown(spec)}: {error}") from None
    return normalizer, map_, rounding


def split_low_rank(spec: str) -> tuple[int, str, str] | None:
    """Rank, spec of the factors and spec of the rest; None if the spec has no low-rank part."""
    text = spec.strip()
    if len(text) > LONGEST:
        return None  # which `parse` refuses
    if len(_LOW_RANK_BEGIN.findall(text)) > 1:
        raise SpecError(
            f"spec={shown(spec)} has more than one low-rank part; the form is {LOW_RANK}"
        )
    match = _LOW_RANK.fullmatch(text)
    if match is None or not all(part.strip() for part in match.groups()):
        if text.lower().startswith("lowrank"):
            raise SpecError(
                f"spec={shown(spec)} does not have the form {LOW_RANK}, such as "
                "lowrank4(B128/DE@8s)+B128/DE@4s"
            )
        return None
    return int(match[1]), match[2], match[3]


def parse_map(text: str, codebooks: Iterable[Codebook] = ()) -> maps.Map:
    """Map of the part of a spec after ``/``, such as ``DE@4s``."""
    match = _ONE_MAP.fullmatch(text.strip()) if len(text) <= LONGEST else None
    if match is None:
        raise SpecError(f"map={shown(text)} does not have the form MAP@BITS[s|u], such as DE@4s")
    try:
        return _map(match, codebooks)
    except BadValueError as error:
        raise SpecError(f"map={shown(text)}: {error}") from None


def parse_normalizer(text: str) -> normalize.Normalizer:
    """Normalizer of the part of a spec before ``/``."""
    if len(text) > LONGEST:
        raise SpecError(
            f"normalizer={shown(text)} has {len(text)} characters; at most {LONGEST} are allowed"
        )
    parts = [_one_normalizer(part.strip()) for part in text.split("&")]
    return parts[0] if len(parts) == 1 else Minimum(*parts)


def _one_normalizer(text: str) -> normalize.Normalizer:
    for cls in normalize.REGISTRY:
        if (normalizer := cls.parse(text)) is not None:
            return normalizer
    for suffix, format_ in SUFFIXES.items():
        if text.lower().endswith(suffix):
            inner = text[: -len(suffix)]
            while inner.lower().endswith(2 * suffix):
                inner = inner[: -len(suffix)]  # hundreds of them would recurse too deeply
            return format_(_one_normalizer(inner))
    # B<n> is compared with the number written, so that "C128" is near "B128".
    number = re.search(r"\d+", text, re.ASCII)
    written = [re.sub("<.>", number[0] if number else "<n>", name) for name in normalize.names()]
    raise UnknownPartError(
        f"unknown normalizer {shown(text)}; allowed are {', '.join(normalize.names())}, "
        f"each with or without one of {', '.join(sorted(SUFFIXES))}{nearest(text, written)}"
    )


def _map(match: re.Match[str], codebooks: Iterable[Codebook]) -> maps.Map:
    transform, colon, inner = match["map"].partition(":")
    if colon:
        return _transformed(transform.strip(), inner.strip(), match)
    name, bits = match["map"].strip(), int(match["bits"])
    sign = match["sign"].lower()
    labelled = dict.fromkeys(book for book in codebooks if book.label.lower() == name.lower())
    if len(labelled) > 1:
        raise SpecError(
            f"two different codebooks have the label {name!r}; each needs its own label"
        )
    for codebook in labelled:
        if bits != codebook.bits or (sign and (sign == "s") != codebook.signed):
            raise SpecError(
                f"the codebook given is {codebook.spec}, which has another width or sign"
            )
        return codebook
    by_folded = {label.lower(): label for label in maps.REGISTRY}
    if name.lower() not in by_folded:
        labels = [*maps.names(), *(codebook.label for codebook in codebooks)]
        raise UnknownPartError(
            f"unknown map {shown(name)}; allowed are {', '.join(labels)}{nearest(name, labels)}"
        )
    cls = maps.REGISTRY[by_folded[name.lower()]]
    signed = sign == "s" if sign else cls.signs[0]
    return cls(bits=bits, signed=signed, **_fields(cls, match["fields"]))


def _transformed(transform: str, name: str, match: re.Match[str]) -> Transformed:
    """The map after a transform; its field `nearest` belongs to `Transformed`."""
    if named(transform) is None:
        raise SpecError(f"unknown transform {shown(transform)}; allowed are {', '.join(written())}")
    fields = [field.strip() for field in (match["fields"] or "").split(",") if field.strip()]
    option = [field for field in fields if field.lower().replace(" ", "").startswith("nearest=")]
    if len(option) > 1:
        raise SpecError(f"field 'nearest' of {transform} is given more than once")
    inner_fields = ",".join(field for field in fields if field not in option)
    inner = f"{name}({inner_fields})@" if inner_fields else f"{name}@"
    parts = _ONE_MAP.fullmatch(f"{inner}{match['bits']}{match['sign']}")
    if parts is None:
        raise SpecError(f"unknown map {shown(name)} after the transform {transform}")
    rounds = _value("nearest", option[0].partition("=")[2].strip(), False) if option else False
    return Transformed(transform, _map(parts, ()), nearest=rounds)


def _fields(cls: type[maps.Map], text: str | None) -> dict[str, Any]:
    """The map's own fields, each of the type of its default."""
    types = {
        field.name: field
        for field in fields(cls)
        if field.name not in ("bits", "signed") and field.default is not MISSING
    }
    values: dict[str, Any] = {}
    for item in filter(None, (text or "").replace(" ", "").split(",")):
        name, _, value = item.partition("=")
        if name.lower() not in types:
            allowed = ", ".join(types) or "no fields"
            raise SpecError(
                f"unknown field {shown(name)} of {cls.spec_name}; allowed are {allowed}"
            )
        if name.lower() in values:
            raise SpecError(f"field {name!r} of {cls.spec_name} is given more than once")
        default = types[name.lower()].default
        values[name.lower()] = _value(name, value, default)
    return values


def _value(name: str, text: str, default: Any) -> Any:
    kind = type(default)
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise SpecError(f"{name}={shown(text)} must be true or false")
    try:
        # Python's numbers may hold underscores and digits of any script; a spec's may not.
        if not re.fullmatch(r"[-+.\w]*", text, re.ASCII) or "_" in text:
            raise ValueError
        return kind(text)
    except ValueError:
        raise SpecError(f"{name}={shown(text)} must be of type {kind.__name__}") from None
