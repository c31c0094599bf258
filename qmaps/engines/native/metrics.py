"""Error metrics on the native engine: tensors are quantized and measured in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qmaps.algebra.packing import packed_bytes
from qmaps.algebra.philox import RoundingKey
from qmaps.engines.addresses import address
from qmaps.engines.native import core, tensors
from qmaps.maps.base import Map, table
from qmaps.metrics import Sums
from qmaps.normalize.base import Normalizer, Scales

if TYPE_CHECKING:
    from qmaps.algebra.quantizer import QuantizedTensor


def measure(
    x: Tensor, normalizer: Normalizer, map_: Map, key: RoundingKey | None, *, keep: bool
) -> tuple[Sums, Tensor | None, Scales, int]:
    """See `qmaps.ops.dispatch.measure`; the last result is `Flags` or-ed together.

    Float64 sums are taken in an order fixed by shape and quantizer: they have the same bits on
    every instruction set and for any number of threads.
    """
    x = x.contiguous()
    shape, numel = tuple(x.shape), x.numel()
    packed = torch.empty(packed_bytes(numel, map_.bits), dtype=torch.uint8) if keep else None
    scales = normalizer.zero_scales(shape)
    codes = torch.empty(table(map_).numel(), dtype=torch.int64)
    book, places, packed_at, scales_at = tensors.stored(
        packed, scales, normalizer, map_, shape, brief=map_.counted
    )
    flags, *floats, nonzero, zeroed = core.measure(
        book,
        places,
        address(x),
        tensors.DTYPES[x.dtype],
        numel,
        packed_at,
        scales_at,
        None if key is None else key.words(),
        not map_.signed,
        address(codes),
        tensors.threads(numel),
    )
    absolute, square, signal, relative, signed, largest = floats
    sums = Sums(numel, absolute, square, signal, relative, signed, largest, nonzero, zeroed, codes)
    return sums, packed, scales, flags


class UpdateErrors:
    """Errors of Adam updates over parameters given one after another; 8 bytes per element.

    Order statistics are exact, sums as in `measure`.
    """

    def __init__(self) -> None:
        self._errors = core.UpdateErrors()

    def clear(self) -> None:
        """Start again from nothing, keeping the memory."""
        self._errors.clear()

    def add_moments(
        self,
        exact: Tensor,
        v: Tensor,
        first: Tensor | QuantizedTensor,
        second: Tensor | QuantizedTensor,
        eps: float,
    ) -> None:
        """Add the errors of one parameter: its exact update, its exact `v`, and both moments.

        Tensors are float32 and contiguous; `NativeSupport.decodes` must accept quantized moments.
        """
        numel = exact.numel()
        self._errors.add(
            address(exact),
            address(v),
            _moment(first),
            _moment(second),
            eps,
            numel,
            tensors.threads(numel),
        )

    def summary(self, levels: Sequence[float]) -> tuple[int, int, list[Any], list[Any]]:
        """The errors of all parameters together.

        Returns:
            Number of elements; number of nonzero second moments decoded to 0 where the first moment
            is not; and, for absolute errors and for relative ones, their number, their sum, and the
            nearest-rank quantiles at `levels` with the maximum (empty without elements).
        """
        sums = self._errors.summary(list(levels), torch.get_num_threads())
        numel, collapsed, total, ranks, absolute, relative, relative_ranks = sums
        return numel, collapsed, [numel, total, ranks], [absolute, relative, relative_ranks]


def add_update_grid(
    exact: Tensor,
    first: QuantizedTensor,
    second: QuantizedTensor,
    eps: float,
    sums: Sequence[Tensor],
) -> None:
    """Add the update errors of one parameter to sums by pair of codes.

    `exact` is the exact update, float32 and contiguous; `sums` are count, absolute and relative
    error, and elements with u != 0: contiguous float64 of shape (codes of first, codes of second),
    the same for any number of threads.
    """
    numel = exact.numel()
    core.add_update_grid(
        address(exact),
        _moment(first),
        _moment(second),
        eps,
        numel,
        [address(target) for target in sums],
        tensors.threads(numel),
    )


def _moment(moment: Tensor | QuantizedTensor) -> tuple[Any, ...]:
    if isinstance(moment, Tensor):
        return None, None, address(moment), []
    q = moment.quantizer
    return tensors.stored(
        moment.packed, moment.scales, q.normalizer, q.map, moment.shape, brief=q.map.counted
    )
