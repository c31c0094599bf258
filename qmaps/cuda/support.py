"""Support of the CUDA engine, with the reason where it supports something not."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from qmaps.cuda.layout import TILE, UNIT
from qmaps.cuda.tensors import block_of
from qmaps.engines.step import ParameterStep
from qmaps.engines.support import Support, of_device
from qmaps.normalize.base import Normalizer
from qmaps.normalize.geometry import Geometry


class CudaSupport(Support):
    """Limits of the CUDA engine."""

    def _of_scales(self, geometry: Geometry, numel: int) -> str:
        if (geometry.quantile or geometry.ratio) and not block_of(geometry, numel):
            return f"its blocks are not a power of two from {UNIT} to {TILE} elements"
        return ""

    def _takes_wide_maps(self, normalizer: Normalizer) -> bool:
        return not normalizer.log_domain

    def _of_engine(self, parameter: ParameterStep, device: torch.device) -> Iterator[str]:
        yield from of_device(parameter, device)
        if any(state.factored and state.quantizer is not None for state in parameter.states):
            yield "its factored statistics are quantized"


CUDA = CudaSupport()
