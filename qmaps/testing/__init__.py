"""Checks that a map, a normalizer or an optimizer of your own must pass.

This package's own tests run them::

    from qmaps.testing import check_map, check_normalizer, check_optimizer

    def test_cubic():
        check_map(Cubic)

A failed check raises AssertionError, with a note that names it. The checks run with
or without pytest; ``pytest.register_assert_rewrite("qmaps.testing")`` makes pytest show values.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from qmaps.errors import BadTypeError
from qmaps.maps import REGISTRY
from qmaps.maps.base import Map
from qmaps.maps.fitted import FittedMap
from qmaps.normalize.base import Normalizer
from qmaps.testing import maps, normalizers
from qmaps.testing._data import about
from qmaps.testing.optimizers import check_optimizer

__all__ = ["check_map", "check_normalizer", "check_optimizer"]

FITTED_AT = (2, 3, 8)
"""Widths at which fitted maps are checked, where they have them."""


def check_map(map_: type[Map] | Map, device: torch.device | str = "cpu") -> None:
    """Check a map.

    Its codebook is sorted, finite and pure; every value has its own code; thresholds between codes
    are exact for every float32; rounding errors stay within half a gap; stochastic rounding is
    unbiased and leaves values of the codebook alone.

    Args:
        map_: a class, checked at every width and sign with its default fields (a
            fitted one at 2, 3 and 8 bits, fitted to normal values), or one map.
        device: where to quantize.

    Raises:
        AssertionError: a check fails; a note names the map.
        BadTypeError: `map_` is no map.

    >>> from qmaps.maps import Linear
    >>> check_map(Linear(4))
    """
    for form in forms(map_):
        for check in maps.CHECKS:
            with about(f"{check.__name__} of {form}"):
                check(form, torch.device(device))


def forms(map_: type[Map] | Map) -> list[Map]:
    """The maps with a codebook for `check_map`."""
    if isinstance(map_, Map):
        return [_frozen(map_)]
    if not (isinstance(map_, type) and issubclass(map_, Map)):
        raise BadTypeError(f"map_ must be a map or a class of maps, got {map_!r:.50}")
    instances = [map_(bits=bits, signed=s) for s in map_.signs for bits in map_.widths_of(s)]
    if map_.fitted:
        instances = [instance for instance in instances if instance.bits in FITTED_AT]
    return [_frozen(instance) for instance in instances]


def registered(bits: int) -> list[Map]:
    """Every registered map, with each of its signs, at the width nearest to `bits`."""
    return [cls.near(bits, signed) for cls in REGISTRY.values() for signed in cls.signs]


def _frozen(map_: Map) -> Map:
    """The map itself, or its codebook fitted to normal values, or to their squares."""
    if not isinstance(map_, FittedMap):
        return map_
    values = torch.randn(5000, generator=torch.Generator().manual_seed(1), dtype=torch.float32)
    return map_.fit(values if map_.signed else values.square())


def check_normalizer(
    normalizer: Normalizer,
    with_maps: Iterable[Map] | None = None,
    device: torch.device | str = "cpu",
) -> None:
    """Check a normalizer with every map.

    Specs round-trip; shapes, strides and dtypes of tensors do not matter; decoding is one division,
    the nearest code and one product; zeros stay zeros; non-finite values are refused, or stay
    non-finite; tensors are written in place and survive files; stochastic rounding is unbiased.

    Args:
        normalizer: one of every kind of parameters of the class deserves a check.
        with_maps: maps to compose it with; left out, every registered map, near 4 bits.
        device: where to quantize.

    Raises:
        AssertionError: a check fails; a note names the quantizer.
        BadTypeError: `normalizer` is none.

    >>> from qmaps.maps import Linear
    >>> from qmaps.normalize import BlockWise
    >>> check_normalizer(BlockWise(64), [Linear(4)])
    """
    if not isinstance(normalizer, Normalizer):
        raise BadTypeError(f"normalizer must be a Normalizer, got {normalizer!r:.50}")
    chosen = registered(4) if with_maps is None else list(with_maps)
    for check in normalizers.CHECKS:
        with about(f"{check.__name__} of {normalizer}"):
            normalizers.run(check, normalizer, chosen, torch.device(device))
