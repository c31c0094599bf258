"""Error metrics on the CUDA engine: tensors are quantized and measured in one pass."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from qmaps.algebra.packing import packed_bytes
from qmaps.algebra.philox import RoundingKey
from qmaps.cuda import layout
from qmaps.cuda.compiler import kernel
from qmaps.cuda.engine import Engine
from qmaps.cuda.tensors import DTYPES, described, format_name, layout_of, prepare, store_scales
from qmaps.engines.addresses import address
from qmaps.maps.base import Map, table
from qmaps.metrics import Sums
from qmaps.normalize.base import Normalizer, Scales


def measure(
    engine: Engine,
    x: Tensor,
    normalizer: Normalizer,
    map_: Map,
    key: RoundingKey | None,
    *,
    keep: bool,
) -> tuple[Sums, Tensor | None, Scales, int]:
    """See `qmaps.ops.dispatch.measure`; the last result is `Flags` or-ed together.

    Float64 sums are taken in an order fixed by the number of elements. The host waits once.
    """
    x = x.contiguous()
    shape, numel = tuple(x.shape), x.numel()
    lies = layout_of(normalizer, shape)
    packed = None
    if keep:
        size = packed_bytes(numel, map_.bits)
        packed = torch.empty(size, dtype=torch.uint8, device=x.device)
    scales = normalizer.zero_scales(shape, x.device)
    sums = torch.zeros(layout.MEASURED.itemsize, dtype=torch.uint8, device=x.device)
    parts = partial_sums(numel, layout.ERROR_SUMS, x.device)

    task = np.zeros((), dtype=layout.MEASURE)
    task["found"], task["parts"] = address(sums), address(parts)
    tensor = task["tensor"]
    tensor[...] = described(x, packed, map_, lies)
    tensor["flags"] = address(sums) + layout.offset(layout.MEASURED, "flags")
    tensor["refuse_negative"] = not map_.signed
    memory = prepare(engine, tensor, x.dtype, lies, scales, key)
    form = format_name(map_, lies, stochastic=key is not None)
    engine.launch_over(kernel("measure", DTYPES[x.dtype], form), len(parts), task)
    store_scales(engine, tensor, lies)
    del memory  # the kernels read it until here
    add_parts(engine, parts, address(sums))
    result = sums.cpu().numpy().view(layout.MEASURED)[0]
    nonzero, zeroed = int(result["nonzero"]), int(result["zeroed"])
    largest = float(result["largest"].view(np.float64))
    codes = torch.from_numpy(result["codes"][: table(map_).numel()].astype(np.int64))
    absolute, square, signal, relative = map(float, result["sums"])
    totals = Sums(numel, absolute, square, signal, relative, largest, nonzero, zeroed, codes)
    return totals, packed, scales, int(result["flags"])


def partial_sums(numel: int, count: int, device: torch.device) -> Tensor:
    """Uninitialized memory for `count` sums of each chunk of `layout.SUMS_CHUNK` elements."""
    return torch.empty(-(-numel // layout.SUMS_CHUNK), count, dtype=torch.float64, device=device)


def add_parts(engine: Engine, parts: Tensor, totals: int) -> None:
    """Add the sums of all chunks, in their order, to totals on the device."""
    task = np.zeros((), dtype=layout.PARTIAL_SUMS)
    task["parts"], task["count"], task["totals"] = address(parts), len(parts), totals
    engine.launch(kernel("add_parts", parts.shape[1]), 1, task)
