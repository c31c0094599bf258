"""Quantized tensors on the CUDA engine."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qmaps.algebra.packing import packed_bytes
from qmaps.algebra.philox import RoundingKey
from qmaps.cuda import layout
from qmaps.cuda.codebooks import codebook, searching
from qmaps.cuda.compiler import kernel
from qmaps.cuda.engine import Engine
from qmaps.engines.addresses import address
from qmaps.maps.base import Map
from qmaps.normalize.base import Normalizer, Scales
from qmaps.normalize.geometry import Geometry
from qmaps.normalize.scale_kind import ScaleKind

DTYPES = {torch.float32: "float", torch.bfloat16: "Bf16", torch.float16: "F16"}


@dataclass(frozen=True)
class ScaleLayout:
    """Layout of a tensor's scales, for kernels.

    Attributes:
        geometry: the lists of scales.
        block: elements of a block encoded at once: a power of two from 8 to `layout.TILE`,
            where each block has scales of its own. 0 for all others: scales that span more than one
            block or depend on those of others, or belong to blocks of other sizes.
    """

    geometry: Geometry
    block: int

    @property
    def log(self) -> bool:
        """True if they are the ends of log2 ranges."""
        return self.geometry.log and not self.geometry.ratio

    @property
    def grids(self) -> bool:
        """True if some scales are codes of a grid over all scales."""
        return any(part.ends is not None for part in self.geometry.parts)

    @property
    def rounds(self) -> bool:
        """True if some scales are stored in another form than their maxima."""
        return self.geometry.log or not all(part.plain for part in self.geometry.parts)

    @property
    def scaling(self) -> str:
        """The ``Scaling`` of ``src/codebook.cuh`` of blocks encoded at once."""
        part = self.geometry.parts[0]
        if self.geometry.quantile:
            return "kQuantile"
        if self.geometry.ratio:
            return "kPowers"
        return "kMaxima" if not self.block or part.plain else "kFormatted"


@functools.lru_cache(maxsize=4096)
def layout_of(normalizer: Normalizer, shape: tuple[int, ...]) -> ScaleLayout:
    """The layout of the scales of a tensor, under a normalizer supported by the engine."""
    geometry = normalizer.geometry(shape)
    assert geometry is not None  # `qmaps.cuda.support.CUDA` was asked
    return ScaleLayout(geometry, block_of(geometry, torch.Size(shape).numel()))


def block_of(geometry: Geometry, numel: int) -> int:
    """`ScaleLayout.block` of a tensor with `numel` elements."""
    first = geometry.parts[0]
    single = len(geometry.parts) == 1 and first.ends is None and first.stored is not ScaleKind.ONE
    local = geometry.log or single
    again = first.divisor * first.count < numel
    # A single block may as well be larger than the tensor.
    size = max(layout.UNIT, 1 << (numel - 1).bit_length()) if first.count == 1 else first.divisor
    power = size & (size - 1) == 0 and layout.UNIT <= size <= layout.TILE
    return size if local and power and not again else 0


def format_name(map_: Map, scale_layout: ScaleLayout, *, stochastic: bool = False) -> str:
    """The ``Format`` of ``src/codebook.cuh`` as C++ text, a template argument of kernels."""
    bounded = bool(scale_layout.block) and scale_layout.scaling == "kMaxima"
    bounded = bounded and not scale_layout.log
    signed, steps = searching(map_, stochastic=stochastic, bounded=bounded)
    flags = [str(flag).lower() for flag in (scale_layout.log, stochastic, signed)]
    arguments = [map_.bits, scale_layout.block, *flags, steps]
    if scale_layout.scaling != "kMaxima":  # the default
        arguments.append(scale_layout.scaling)
    return f"Format<{', '.join(map(str, arguments))}>"


class Places(NamedTuple):
    """Offsets of a part of the scales in the memory of a `Workspace`, in floats.

    Attributes:
        fresh: of its maxima; -1 for none, as for the others.
        grid: of its grid.
        made: of the new scales to be stored: 2 bytes each.
    """

    fresh: int = -1
    grid: int = -1
    made: int = -1


class Workspace:
    """Memory for the maxima and grids of one or more tensors' scales, all zero at first.

    First `add` every tensor's scales, then `place` them.
    """

    def __init__(self) -> None:
        self._floats = 0
        self._added: list[tuple[np.ndarray, ScaleLayout, Sequence[Tensor], list[Places]]] = []

    def add(
        self,
        target: np.ndarray,
        scale_layout: ScaleLayout,
        scales: Sequence[Tensor],
        *,
        fresh_floats: bool = False,
    ) -> None:
        """Reserve memory for maxima, grids and stored scales; `target` is a ``Scales``.

        With `fresh_floats`, scales stored in float32 get maxima of their own, too.
        """
        places = []
        for part in scale_layout.geometry.parts:
            grid = -1 if part.ends is None else self._take(layout.GRID_FLOATS)
            as_stored = part.plain and not scale_layout.geometry.log
            fresh = -1 if as_stored and not fresh_floats else self._take(part.count)
            made = -1 if part.plain else self._take(-(-part.count // 2))
            places.append(Places(fresh, grid, made))
        self._added.append((target, scale_layout, scales, places))

    def _take(self, floats: int) -> int:
        at = self._floats
        self._floats += -(-floats // 4) * 4
        return at

    def place(self, device: torch.device) -> Tensor:
        """Describe all scales; returns the memory, to be kept as long as the descriptions."""
        memory = torch.zeros(self._floats, dtype=torch.float32, device=device)
        for target, scale_layout, scales, places in self._added:
            describe_scales(target, scale_layout, scales, places, memory)
        return memory


def describe_scales(
    target: np.ndarray,
    scale_layout: ScaleLayout,
    scales: Sequence[Tensor],
    places: Sequence[Places] = (Places(),) * layout.MAX_PARTS,
    memory: Tensor | None = None,
) -> None:
    """Fill in ``Scales``; a part without maxima of its own uses its stored scales."""
    geometry = scale_layout.geometry
    target["parts"], target["log"] = len(geometry.parts), scale_layout.log
    target["quantile"], target["ratio"] = geometry.quantile, geometry.ratio
    begin = 0 if memory is None else address(memory)
    for row, part, place in zip(target["part"], geometry.parts, places, strict=False):
        row["divisor"], row["count"] = part.divisor, part.count
        row["kind"] = part.stored
        stored = address(scales[part.array], part.count, "a tensor of scales")
        if part.ends is None:
            row["stored"] = stored
            row["values"] = stored if part.stored.nbytes == 4 else 0
        else:
            row["codes"], row["ends"] = stored, address(scales[part.ends])
        row["fresh"] = stored if place.fresh < 0 else begin + 4 * place.fresh
        row["grid"] = 0 if place.grid < 0 else begin + 4 * place.grid
        row["made"] = 0 if place.made < 0 else begin + 4 * place.made


def describe_noise(target: np.ndarray, key: RoundingKey) -> None:
    """Fill in ``Noise``, in place, with the words of `key`."""
    names = ("key0", "key1", "word1", "word2", "word3", "offset")
    for name, word in zip(names, key.words(), strict=True):
        target[name] = word


def tiles(numel: int) -> int:
    """The number of tiles of `layout.TILE` elements in a tensor."""
    return -(-numel // layout.TILE)


def chunks(scale_layout: ScaleLayout) -> int:
    """The number of chunks of `layout.SCALES_CHUNK` scales in the longest part."""
    return max(-(-part.count // layout.SCALES_CHUNK) for part in scale_layout.geometry.parts)


def quantize(
    engine: Engine,
    x: Tensor,
    normalizer: Normalizer,
    map_: Map,
    key: RoundingKey | None,
    out: tuple[Tensor, Scales] | None,
    *,
    check: bool,
) -> tuple[Tensor, Scales, int]:
    """See `qmaps.ops.dispatch.quantize`; the last result is `Flags` or-ed together.

    Without `check` the host waits for nothing.
    """
    x = x.contiguous()
    shape, numel = tuple(x.shape), x.numel()
    scale_layout = layout_of(normalizer, shape)
    if out is None:
        packed = torch.empty(packed_bytes(numel, map_.bits), dtype=torch.uint8, device=x.device)
        scales = normalizer.zero_scales(shape, x.device)
    else:
        packed, scales = out
    flags = torch.zeros((), dtype=torch.int32, device=x.device) if check else None
    task = described(x, packed, map_, scale_layout)
    if flags is not None:
        task["flags"], task["refuse_negative"] = address(flags), not map_.signed
        if out is not None and numel:
            engine.launch_over(kernel("scan", DTYPES[x.dtype]), tiles(numel), task)
            if seen := int(flags):
                return packed, scales, seen
            task["flags"] = 0
    if out is not None and not scale_layout.block:
        for part in scale_layout.geometry.parts:
            if part.plain and not scale_layout.geometry.log:
                scales[part.array].zero_()  # the initial value of maxima
    memory = _place_scales(engine, task, scale_layout, scales)
    if key is not None:
        describe_noise(task["noise"], key)
    if not scale_layout.block:  # multi-block scales; maxima in float32 start from stored values
        engine.launch_over(kernel("find_maxima", DTYPES[x.dtype]), tiles(numel), task)
        if scale_layout.grids:
            engine.launch_over(kernel("find_tensor_ends"), chunks(scale_layout), task)
            engine.launch(kernel("new_tensor_grids"), len(scale_layout.geometry.parts), task)
        if scale_layout.rounds:
            engine.launch_over(kernel("round_tensor_scales"), chunks(scale_layout), task)
        task["flags"] = 0
    form = format_name(map_, scale_layout, stochastic=key is not None)
    encode = kernel("encode", DTYPES[x.dtype], form)
    engine.launch_over(encode, tiles(numel), task)
    if scale_layout.rounds and not scale_layout.block:
        engine.launch_over(kernel("commit_tensor_scales"), chunks(scale_layout), task)
    del memory  # the kernels read it until here
    return packed, scales, 0 if flags is None else int(flags)


def dequantize(
    engine: Engine, packed: Tensor, scales: Scales, normalizer: Normalizer, map_: Map, out: Tensor
) -> None:
    """See `qmaps.ops.dispatch.dequantize`; all tensors are contiguous, on the engine's device."""
    scale_layout = layout_of(normalizer, tuple(out.shape))
    task = described(out, packed, map_, scale_layout)
    memory = _place_scales(engine, task, scale_layout, scales)
    if scale_layout.grids:
        engine.launch(kernel("read_tensor_grids"), len(scale_layout.geometry.parts), task)
    decode = kernel("decode", DTYPES[out.dtype], format_name(map_, scale_layout))
    engine.launch_over(decode, tiles(out.numel()), task)
    del memory  # the kernels read it until here


def _place_scales(
    engine: Engine, task: np.ndarray, scale_layout: ScaleLayout, scales: Sequence[Tensor]
) -> Tensor:
    """Fill in the addresses of scales, and of new memory for maxima and grids; returns it."""
    workspace = Workspace()
    workspace.add(task["scales"], scale_layout, scales)
    return workspace.place(engine.device)


def described(x: Tensor, packed: Tensor, map_: Map, scale_layout: ScaleLayout) -> np.ndarray:
    """A ``Tensor`` without its scales and noise.

    Returns:
        A record of dtype `layout.TENSOR`; other fields are 0.

    Raises:
        BadValueError: a tensor is not contiguous, or `packed` has a wrong number of bytes.
    """
    task = np.zeros((), dtype=layout.TENSOR)
    task["x"], task["numel"] = address(x), x.numel()
    needed = packed_bytes(x.numel(), map_.bits)
    task["packed"] = address(packed, needed, "packed")
    task["codebook"] = codebook(map_, x.device).described
    task["scales"]["parts"] = len(scale_layout.geometry.parts)
    return task
