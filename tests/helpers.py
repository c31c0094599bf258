"""Every map, normalizer and composition in the registries, new files included."""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

import qmaps
from qmaps import maps, normalize
from qmaps.maps.base import Map
from qmaps.maps.codebook import Codebook
from qmaps.maps.fitted import FittedMap
from qmaps.normalize.base import Normalizer
from qmaps.normalize.scale_format import SUFFIXES
from qmaps.testing import forms, registered
from qmaps.testing._data import LARGEST, SMALLEST, about, sample
from qmaps.testing.normalizers import composed

__all__ = ["LARGEST", "SMALLEST", "about", "sample"]


class Pickling(ThreadPoolExecutor):
    """Threads in place of processes; their work is pickled, and they start faster."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        function, arguments, named = pickle.loads(pickle.dumps((function, arguments, named)))
        return super().submit(function, *arguments, **named)


def formula_maps() -> list[Map]:
    """Every map without data, at each of its widths and signs, and some codebooks of users."""
    classes = [maps.REGISTRY[name] for name in maps.names()]
    results = [map_ for cls in classes if not cls.fitted for map_ in forms(cls)]
    return [*results, *users_codebooks()]


def users_codebooks() -> list[Codebook]:
    """Codebooks as users provide them."""
    generator = torch.Generator().manual_seed(5)
    steep = [10.0**-k for k in range(0, 38, 3)]
    return [
        Codebook(torch.randn(200, generator=generator), label="random"),
        Codebook(steep, label="steep"),
        Codebook([-1e30, -1e-30, 0.0, 1.0, 1.0 + 2**-23, 1.0 + 2**-22], label="odd"),
        Codebook([2**-149, 2**-148, 3 * 2**-149, 2**-140], label="subnormal"),
    ]


def fitted_maps(bits: int) -> list[FittedMap]:
    """Every fitted map, signed and unsigned."""
    return [
        cls(bits=bits, signed=signed)
        for cls in maps.REGISTRY.values()
        if issubclass(cls, FittedMap)
        for signed in cls.signs
    ]


def squares_in_doubt() -> Tensor:
    """16 numbers with a norm of about 1 + 2**-24; the order of their sum decides its rounding."""
    powers = [-27, None, -27, -27, None, -27, None, -12, -27, -27, -27, -12, -27, 0, -24, -27]
    return torch.tensor([0.0 if power is None else 2.0**power for power in powers])


def normalizers() -> list[Normalizer]:
    """Every normalizer in the registries, plain and with suffixes, and pairs under ``&``."""
    plain = [
        parsed
        for cls in normalize.REGISTRY
        for size in ("7", "64")
        for name in [cls.spec_name.replace("<n>", size).replace("<k>", "4")]
        if (parsed := cls.parse(name)) is not None
    ]
    plain = list(dict.fromkeys(plain))
    plain += [normalize.LogBlock(7, 0.25), normalize.RootMeanSquare(1.5, 64)]
    dividing = [n for n in plain if not n.alone]
    eight = [normalize.eight_bit.EightBit(n) for n in dividing]
    spread = [n for n in dividing if n.spec in ("B64", "rank1", "tensor")]
    scale_formats = [cls for cls in SUFFIXES.values() if cls is not normalize.eight_bit.EightBit]
    formats: list[Normalizer] = [cls(n) for cls in scale_formats for n in spread]
    pairs = [dividing[i] & dividing[(i + 1) % len(dividing)] for i in range(len(dividing))]
    mixed = [eight[0] & dividing[-1], dividing[1] & eight[-1], dividing[0] & pairs[2]]
    mixed += [formats[i] & dividing[i % len(dividing)] for i in range(0, len(formats), 4)]
    return [*plain, *eight, *formats, *pairs, *mixed]


@functools.cache
def representatives(bits: int) -> tuple[Map, ...]:
    """Each map once for each sign, at `bits` or its nearest width, and some codebooks of users."""
    return (*registered(bits), *users_codebooks())


def compositions_of(normalizer: Normalizer, bits: int = 4) -> list[qmaps.Quantizer]:
    """`normalizer` with every compatible map."""
    return list(composed(normalizer, representatives(bits)))


def compositions(bits: int = 4) -> list[qmaps.Quantizer]:
    """Every normalizer with every compatible map, at `bits` or its nearest width."""
    return [q for normalizer in normalizers() for q in compositions_of(normalizer, bits)]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True for equal elements; -0 differs from 0, and NaN equals NaN."""
    same = (a == b) & (a.signbit() == b.signbit())
    return a.shape == b.shape and bool((same | ((a != a) & (b != b))).all())


class Wrapped(Tensor):
    """A tensor without elements at its address, like quantized weights of other libraries."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor, requires_grad: bool = True) -> Any:
        self = Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device, requires_grad=requires_grad
        )
        self.inner = inner
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = [x.inner if isinstance(x, Wrapped) else x for x in args]
        result = func(*args, **(kwargs or {}))
        return cls(result, False) if func is torch.ops.aten.detach.default else result


def examples(count: int) -> int:
    """`count` random examples, times the environment variable QMAPS_FUZZ (``make fuzz``)."""
    return count * int(os.environ.get("QMAPS_FUZZ", "1"))
