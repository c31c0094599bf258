"""Every map, normalizer and composition, from the registries: a new file is covered as it is."""

from __future__ import annotations

from itertools import product

import torch

import qmaps
from qmaps import maps, normalize
from qmaps.maps.base import FittedMap, Map
from qmaps.maps.codebook import Codebook
from qmaps.normalize.base import Normalizer


def formula_maps() -> list[Map]:
    """Every map that needs no data, at every width and sign it allows, and some of users."""
    found: list[Map] = []
    for name in maps.names():
        cls = maps.REGISTRY[name]
        if cls.fitted:
            continue
        for signed, bits in product(cls.signs, range(2, 17)):
            try:
                found.append(cls(bits=bits, signed=signed))
            except qmaps.QmapsError:
                continue
    generator = torch.Generator().manual_seed(5)
    steep = [10.0**-k for k in range(0, 38, 3)]
    return [
        *found,
        Codebook(torch.randn(200, generator=generator), label="random"),
        Codebook(steep, label="steep"),
        Codebook([-1e30, -1e-30, 0.0, 1.0, 1.0 + 2**-23, 1.0 + 2**-22], label="odd"),
        Codebook([2**-149, 2**-148, 3 * 2**-149, 2**-140], label="subnormal"),
    ]


def fitted_maps(bits: int) -> list[FittedMap]:
    """Every map that is fitted to data, signed and unsigned."""
    return [
        cls(bits=bits, signed=signed)
        for cls in maps.REGISTRY.values()
        if issubclass(cls, FittedMap)
        for signed in cls.signs
    ]


def normalizers() -> list[Normalizer]:
    """Every normalizer that a spec can name, plain and with x8, and pairs under ``&``."""
    plain = [
        parsed
        for cls in normalize.REGISTRY
        for name in [cls.spec_name.replace("<n>", "7"), cls.spec_name.replace("<n>", "64")]
        if (parsed := cls.parse(name)) is not None
    ]
    plain = list(dict.fromkeys(plain))
    dividing = [n for n in plain if not n.log_domain]
    eight = [normalize.eight_bit.EightBit(n) for n in dividing]
    both = [dividing[i] & dividing[(i + 1) % len(dividing)] for i in range(len(dividing))]
    mixed = [eight[0] & dividing[-1], dividing[1] & eight[-1]]
    return [*plain, *eight, *both, *mixed]


def compositions(bits: int = 4) -> list[qmaps.Quantizer]:
    """Every normalizer with every map that it goes with, at `bits` or the nearest it allows."""
    chosen: dict[tuple[str, bool], Map] = {}
    for map_ in formula_maps():
        key = (map_.spec.partition("@")[0], map_.signed)
        if key not in chosen or abs(map_.bits - bits) < abs(chosen[key].bits - bits):
            chosen[key] = map_
    candidates = [*chosen.values(), *fitted_maps(bits)]
    return [
        normalizer / map_
        for normalizer, map_ in product(normalizers(), candidates)
        if normalizer.log_domain == map_.log_domain
    ]


def sample(shape: tuple[int, ...], signed: bool, seed: int = 0) -> torch.Tensor:
    """Values of many magnitudes, as moments have."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) * torch.exp2(
        4 * torch.randn(shape, generator=generator)
    )
    return x if signed else x.square()
