"""The items of a sweep, each to be measured by any process that can read the states."""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from qmaps.algebra.own_maps import own_values
from qmaps.algebra.pair import Pair, distinct, listed
from qmaps.algebra.quantizer import Quantizer, quantizer
from qmaps.analyze.states import MIN_SIZE, none_is_large
from qmaps.capture import CapturedStates, snapshot
from qmaps.errors import BadValueError, CaptureError, check_number
from qmaps.maps.codebook import Codebook
from qmaps.optim.presets import PRESETS, pair_of
from qmaps.storage import checksums
from qmaps.sweep.measure import MOMENTS, Specs, quantizers_of, rows
from qmaps.sweep.sample import sampled_rows, share_of_large

EIGHT_BIT_MAPS = ("DE", "inverse", "quantile", "linear0", "linear", "tree", "e4m3", "power2")
"""Maps for both moments at 8 bits; the first four are those of the 8-bit paper."""

SECOND_AT_FOUR_BITS = ("DE", "DE-0", "linear", "power2", "quantile")


def _standard() -> tuple[str, ...]:
    """Pairs for Adam's moments: the papers' own and similar ones at every width.

    - 8 bits: eight maps per tensor and under blocks of 2048 and 256,
    - only one moment quantized, the other exact, to see where an error comes from,
    - 4 bits: the second moment under five maps and five normalizers beside ``B128/DE@4s``, and
      the first moment's alternatives beside ``rank1/linear@4u``,
    - Lloyd-Max at 3, 4, 6 and 8 bits, with the maps to compare it with.
    """
    pairs = [
        f"{norm}/{name}@8s + {norm}/{name}@8u"
        for norm in ("tensor", "B2048", "B256")
        for name in EIGHT_BIT_MAPS
    ]
    pairs += ["B256/DE-sym@8s + B256/DE-0@8u", "B256/DE@8s + logB256/log2@8u"]
    pairs += [f"tensor/{name}@8s + 32-bit" for name in ("DE", "inverse", "quantile", "linear0")]
    pairs += [
        "B128/DE@4s + 32-bit",
        "32-bit + B128/DE@4u",
        "32-bit + B128/DE-0@4u",
        "32-bit + rank1/linear@4u",
    ]
    pairs += [
        f"B128/DE@4s + {norm}/{name}@4u"
        for norm in ("tensor", "B2048", "B128", "B32x8", "rank1")
        for name in SECOND_AT_FOUR_BITS
    ]
    pairs += [
        f"{first} + rank1/linear@4u"
        for first in ("B2048/DE@4s", "B32x8/DE@4s", "B128/linear@4s", "B128/nf4@4s", "rank1/DE@4s")
    ]
    pairs += ["B128/DE@4s + logB128/log2@4u", "B128/DE@4s + B128&rank1/linear@4u"]
    for bits in (3, 4, 6):
        pairs += [
            f"B128/{name}@{bits}s + B128/{second}@{bits}u"
            for name, second in (("DE", "DE-0"), ("linear", "linear"), ("lloyd", "lloyd"))
        ]
    pairs += ["B128/DE@8s + B128/DE-0@8u", "B128/lloyd@8s + B128/lloyd@8u"]
    return tuple(dict.fromkeys(pairs))


WORK = 2**29
"""Elements times specs that are measured at once, at most, unless there is one spec."""

STANDARD = _standard()
"""Pairs for Adam's moments: the papers' own and similar ones at every width."""


def digest_of(states: CapturedStates) -> str:
    """A digest of the states.

    A snapshot has checksums of its tensors, and a file of ``torch.save`` the CRC-32 of each
    record, so their digest is one of these. All other states are read.

    Raises:
        CaptureError: states cannot be read, or hold NaN or infinity.
    """
    digest = _digest_of(states)
    if states.given:  # which no file has
        digest = hashlib.sha256(f"{digest} {sorted(states.given.items())}".encode()).hexdigest()
    return digest


def _digest_of(states: CapturedStates) -> str:
    source = Path(states.source)
    if source.is_file():
        if source.suffix == ".safetensors" and checksums.KEY in snapshot.header_of(source)[0]:
            return snapshot.digest(source)
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as file:
                records = sorted((i.filename, i.file_size, i.CRC) for i in file.infolist())
            return hashlib.sha256(json.dumps(records).encode()).hexdigest()
    return states.fingerprint()


Spec = str | Quantizer | Pair | tuple[str | Quantizer | None, str | Quantizer | None]


@dataclass(frozen=True)
class Item:
    """A parameter of a sweep, with all specs.

    Attributes:
        number: its place in the sweep, from 0 on; parts are named by it.
        parameter: its name.
        states: names of the measured states.
        numel: number of elements of the largest of them.
        singles: quantizers of the sweep to measure alone.
        pairs: quantizers of both moments.
        sample: the measured share of the parameter; None for all of it.
    """

    number: int
    parameter: str
    states: tuple[str, ...]
    numel: int
    singles: tuple[Quantizer, ...] = field(repr=False)
    pairs: tuple[Pair, ...] = field(repr=False)
    sample: float | None = None

    @property
    def work(self) -> int:
        """Measured elements times specs, for comparing items."""
        specs = max(1, len(self.singles) + len(self.pairs))
        return round(self.numel * specs * (1.0 if self.sample is None else self.sample))

    def _parts(self) -> Iterator[Specs]:
        """The specs, divided so that the codes of a large tensor need little memory at once."""
        count = max(1, WORK // max(1, self.numel))
        if count >= len(self.singles) + len(self.pairs):
            yield self.singles, self.pairs
            return
        for begin in range(0, len(self.singles), count):
            yield self.singles[begin : begin + count], ()
        for begin in range(0, len(self.pairs), count):
            yield (), self.pairs[begin : begin + count]

    def measure(self, states: CapturedStates) -> pd.DataFrame:
        """Measure the item in this process.

        Raises:
            CaptureError: the states cannot be read, or hold NaN or infinity.
        """
        name, measured, specs = self.parameter, None, (self.singles, self.pairs)
        if self.sample is not None:
            measured = sampled_rows(states, name, self.states, self.sample, specs)
        if measured is None:
            parts = (row for part in self._parts() for row in rows(states, name, self.states, part))
            # Pairs of several parts may share a quantizer, whose rows are equal.
            measured = iter({(row["state"], row["quantizer"]): row for row in parts}.values())
        return pd.DataFrame(measured)


def items_of(
    states: CapturedStates,
    specs: Spec | Iterable[Spec],
    min_quantized_size: int = MIN_SIZE,
    codebooks: tuple[Codebook, ...] = (),
    sample: float | None = None,
) -> list[Item]:
    """Divide a sweep into items for any process; the arguments are those of `qmaps.sweep.run`.

    The items depend on the arguments alone, in the order of the states, and no state is read.

    Raises:
        SpecError: a spec does not parse.
        CaptureError: there are no states, none is large enough, or a pair is given and no parameter
            has both moments.
        BadTypeError, BadValueError: `sample` is not a number above 0 and at most 1.
    """
    if sample is not None:
        check_number("sample", sample)
        if not 0 < sample <= 1:
            raise BadValueError(f"sample={sample:g} must be above 0 and at most 1")
    singles, pairs = _parse(specs, codebooks)
    chosen = _parameters(states, min_quantized_size)
    if pairs and not any(set(names) >= MOMENTS for names in chosen.values()):
        states.with_moments()  # raises an error that lists the states if no parameter has both
        raise CaptureError(
            "no parameter with both exp_avg and exp_avg_sq is large enough to be quantized"
        )
    quantizers = quantizers_of(singles, pairs)
    items: list[Item] = []
    for parameter, names in chosen.items():
        shapes = [states.shape(parameter, name) for name in names]
        largest = max(shapes, key=math.prod)
        sampled = None
        if len(set(shapes)) == 1 and largest:  # of states of one shape the same rows are chosen
            sampled = share_of_large(largest, quantizers) if sample is None else sample
        about = (len(items), parameter, names, math.prod(largest))
        items.append(Item(*about, singles, pairs, sampled))
    return items


def sweep_digest(items: list[Item], states: CapturedStates, min_quantized_size: int) -> str:
    """A SHA-256 of a sweep: specs, sizes and contents of the states."""
    identity = {
        "specs": specs_of(items),
        "step": states.step,
        "parameters": {
            name: {s: list(states.shape(name, s)) for s in states.states(name)}
            for name in states.parameters()
        },
        "min_quantized_size": min_quantized_size,
        "states": digest_of(states),
    }
    if states.own_moments is not None:
        identity["moments"] = states.own_moments
    if shares := [item.sample for item in items if item.sample is not None]:
        identity["sample"] = shares[0]
    quantizers = [
        *items[0].singles,
        *(q for pair in items[0].pairs for q in (pair.first, pair.second)),
    ]
    if books := own_values(quantizers):
        identity["codebooks"] = books
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def specs_of(items: list[Item]) -> list[str]:
    """The specs of a sweep with at least one item."""
    return [str(q) for q in (*items[0].singles, *items[0].pairs)]


def _parse(
    specs: Spec | Iterable[Spec], codebooks: tuple[Codebook, ...]
) -> tuple[tuple[Quantizer, ...], tuple[Pair, ...]]:
    singles: list[Quantizer] = []
    pairs: list[Pair] = []
    for spec in listed(specs):
        if isinstance(spec, Quantizer):
            singles.append(spec)
        elif isinstance(spec, str) and " + " not in spec and spec not in PRESETS:
            singles.append(quantizer(spec, codebooks))
        else:
            pairs.append(pair_of(spec, codebooks))
    distinct(quantizers_of(singles, pairs))
    return tuple(dict.fromkeys(singles)), tuple(dict.fromkeys(pairs))


def _parameters(states: CapturedStates, min_quantized_size: int) -> dict[str, tuple[str, ...]]:
    """State names of each large enough parameter."""
    chosen = {}
    for parameter in states.parameters():
        names = tuple(
            name
            for name in states.values(parameter)
            if math.prod(states.shape(parameter, name)) > min_quantized_size
        )
        if names:
            chosen[parameter] = names
    return chosen or none_is_large("state", min_quantized_size, states)
