"""Optimizers of one width: any optimizer with a preset's quantizers and a block size to choose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from qmaps.errors import BadValueError, shown
from qmaps.normalize.block import check_block_size
from qmaps.optim.base import QuantizedOptimizer
from qmaps.optim.presets import PRESETS


class FixedWidth(QuantizedOptimizer):
    """Mixin that sets the quantizers of an optimizer's states; it comes first among the bases.

    Args:
        params, *args, **options: as for the optimizer, but for `state_quantizers`, which the class
            sets itself.
        block_size: elements per scale, from 1 to 2**53; the preset's own if left out.
        blocksize: the same option under the name that bitsandbytes uses.

    Raises:
        BadValueError: `state_quantizers` is given, `block_size` is out of range, or `block_size`
            and `blocksize` differ.
        BadTypeError: `block_size` is no int.
    """

    preset: ClassVar[str]
    bits: ClassVar[int]

    def __init__(
        self,
        params: Iterable[Any],
        *args: Any,
        block_size: int | None = None,
        blocksize: int | None = None,
        **options: Any,
    ) -> None:
        if "state_quantizers" in options:
            full = next(cls for cls in type(self).__mro__ if not issubclass(cls, FixedWidth))
            raise BadValueError(
                f"state_quantizers={shown(options['state_quantizers'])} does not fit an optimizer "
                f"of fixed width; use qmaps.optim.{full.__name__}"
            )
        for given in (block_size, blocksize):
            if given is not None:
                check_block_size(given)
        if block_size is not None and blocksize is not None and block_size != blocksize:
            raise BadValueError(
                f"block_size={block_size} and blocksize={blocksize} are the same option; set only "
                "one of them"
            )
        size = blocksize if block_size is None else block_size
        super().__init__(params, *args, state_quantizers=self.fixed_specs(size), **options)

    def _stands_for(self, specs: Mapping[str, str | None]) -> dict[str, object]:
        return {**super()._stands_for(specs), "optim_bits": self.bits}

    @classmethod
    def fixed_specs(cls, block_size: int | None) -> dict[str, str | None]:
        """The spec of each state; a block size of None is the class's own."""
        return cls.preset_specs(PRESETS[cls.preset], block_size)


class EightBit(FixedWidth):
    """Signed states under ``B256/DE@8s``, the others under ``B256/DE-0@8u``."""

    preset: ClassVar[str] = "8bit"
    bits: ClassVar[int] = 8


class FourBit(FixedWidth):
    """Signed states under ``B128/DE@4s+sr``, the others under ``B128/DE-0@4u``."""

    preset: ClassVar[str] = "4bit"
    bits: ClassVar[int] = 4
