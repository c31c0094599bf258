"""Quantized tensors on the CUDA engine."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qmaps.cuda import layout
from qmaps.cuda.books import book, searches
from qmaps.cuda.compiler import Entry
from qmaps.cuda.engine import Engine
from qmaps.engines.addresses import address
from qmaps.engines.packing import packed_bytes
from qmaps.engines.philox import RoundingKey
from qmaps.maps.base import Map
from qmaps.normalize.base import Normalizer, Scales
from qmaps.normalize.geometry import Geometry

DTYPES = {torch.float32: "float", torch.bfloat16: "Bf16", torch.float16: "F16"}
MAX_BITS = 8


@dataclass(frozen=True)
class Layout:
    """Where a tensor's scales lie, for kernels.

    Attributes:
        geometry: the parts.
        block: elements of a block that is encoded at once; 0 where scales span more, or other
            numbers of elements than kernels take at once.
    """

    geometry: Geometry
    block: int

    @property
    def eight_bit(self) -> bool:
        """Whether some scales are stored in 8 bits."""
        return any(part.ends is not None for part in self.geometry.parts)


@functools.lru_cache(maxsize=4096)
def layout_of(normalizer: Normalizer, shape: tuple[int, ...]) -> Layout | None:
    """How kernels see the normalizer, or None where they cannot follow."""
    found = normalizer.geometry(shape)
    if found is None or not found.parts or len(found.parts) > layout.MAX_PARTS:
        return None
    first, numel = found.parts[0], torch.Size(shape).numel()
    own = found.log or (len(found.parts) == 1 and first.ends is None)
    again = first.divisor * first.count < numel
    # A single block may as well be larger than the tensor.
    size = max(layout.UNIT, 1 << (numel - 1).bit_length()) if first.count == 1 else first.divisor
    power = size & (size - 1) == 0 and layout.UNIT <= size <= layout.TILE
    block = size if own and power and not again else 0
    return None if found.log and not block else Layout(found, block)


def follows(normalizer: Normalizer, map_: Map, shape: tuple[int, ...]) -> bool:
    """Whether this engine can quantize a tensor of `shape`."""
    return map_.bits <= MAX_BITS and layout_of(normalizer, shape) is not None


def format_name(map_: Map, found: Layout, *, stochastic: bool) -> str:
    """The ``Format`` of ``src/book.cuh``."""
    search = searches(map_)[stochastic]
    signed = len(search.counts) > search.buckets
    flags = [str(flag).lower() for flag in (found.geometry.log, stochastic, signed)]
    return f"Format<{map_.bits}, {found.block}, {', '.join(flags)}, {search.steps}>"


def entry(kernel: str, *arguments: str) -> Entry:
    """A kernel for one tensor: of ``src/quantize.cuh``, or of ``src/tensor_scales.cuh``."""
    if not arguments:
        return Entry("tensor_scales.cuh", kernel)
    return Entry("quantize.cuh", f"{kernel}<{', '.join(arguments)}>")


class Workspace:
    """Room for the maxima and grids of one or more tensors' scales, all zero at first.

    First `place` every part, then make the `memory`, then take the addresses.
    """

    def __init__(self) -> None:
        self._floats = 0

    def place(self, found: Layout, *, fresh_floats: bool) -> list[tuple[int, int]]:
        """Offsets of maxima and grid for every part, in floats; -1 for none.

        Args:
            found: whose parts.
            fresh_floats: whether scales that are stored as floats have maxima apart from them.
        """
        places = []
        for part in found.geometry.parts:
            fresh, grid = -1, -1
            if part.ends is not None:
                grid = self._take(layout.GRID_FLOATS)
            if part.ends is not None or fresh_floats:
                fresh = self._take(part.count)
            places.append((fresh, grid))
        return places

    def _take(self, floats: int) -> int:
        at = self._floats
        self._floats += -(-floats // 4) * 4
        return at

    def memory(self, device: torch.device) -> Tensor:
        """The room, float32 of shape (floats,)."""
        return torch.zeros(self._floats, dtype=torch.float32, device=device)


def describe_scales(
    target: np.ndarray,
    found: Layout,
    scales: Sequence[Tensor],
    places: Sequence[tuple[int, int]],
    memory: Tensor,
) -> None:
    """Fill in ``Scales``.

    Args:
        target: of dtype `SCALES`.
        found: the parts.
        scales: as stored.
        places: of each part in `memory`; a part without maxima of its own takes the stored ones.
        memory: of a `Workspace`.
    """
    target["parts"] = len(found.geometry.parts)
    for row, part, (fresh, grid) in zip(target["part"], found.geometry.parts, places, strict=False):
        row["divisor"], row["count"] = part.divisor, part.count
        stored = address(scales[part.array], part.count, "a tensor of scales")
        if part.ends is None:
            row["values"] = stored
        else:
            row["codes"], row["ends"] = stored, address(scales[part.ends])
        row["fresh"] = stored if fresh < 0 else address(memory) + 4 * fresh
        row["grid"] = 0 if grid < 0 else address(memory) + 4 * grid


def describe_noise(target: np.ndarray, key: RoundingKey) -> None:
    """Fill in ``Noise``."""
    names = ("key0", "key1", "word1", "word2", "word3", "offset")
    for name, word in zip(names, key.words(), strict=True):
        target[name] = word


def tiles(numel: int) -> int:
    """How many tiles a tensor has."""
    return -(-numel // layout.TILE)


def chunks(found: Layout) -> int:
    """How many pieces its scales have, at most, in one part."""
    return max(-(-part.count // layout.SCALES_CHUNK) for part in found.geometry.parts)


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
    """Packed codes, scales, and, if `check`, what `x` holds that it must not.

    Without `check` the host waits for nothing.

    Args:
        engine: of the device of all tensors.
        x: float32, float16 or bfloat16.
        normalizer: one that `follows` allows.
        map_: the same.
        key: of stochastic rounding, None for nearest.
        out: packed codes and scales to write into, contiguous.
        check: look for NaN, infinity, and negative numbers under an unsigned map.

    Returns:
        The third is NON_FINITE and NEGATIVE or-ed together; where it is not 0, `out` is as it was
        and new codes mean nothing.
    """
    x = x.contiguous()
    shape, numel = tuple(x.shape), x.numel()
    found = layout_of(normalizer, shape)
    assert found is not None
    if out is None:
        packed = torch.empty(packed_bytes(numel, map_.bits), dtype=torch.uint8, device=x.device)
        scales = normalizer.zero_scales(shape, x.device)
    else:
        packed, scales = out
    flags = torch.zeros((), dtype=torch.int32, device=x.device) if check else None
    task = described(x, packed, map_, found)
    if flags is not None:
        task["flags"], task["refuse_negative"] = address(flags), not map_.signed
        if out is not None and numel:
            engine.launch_over(entry("scan", DTYPES[x.dtype]), tiles(numel), task)
            if seen := int(flags):
                return packed, scales, seen
            task["flags"] = 0
    if out is not None and not found.block:
        for part in found.geometry.parts:
            if part.ends is None:
                scales[part.array].zero_()  # maxima begin so
    memory = prepare(engine, task, x.dtype, found, scales, key)
    encode = entry("encode", DTYPES[x.dtype], format_name(map_, found, stochastic=key is not None))
    engine.launch_over(encode, tiles(numel), task)
    store_scales(engine, task, found)
    del memory  # it was needed until here
    return packed, scales, 0 if flags is None else int(flags)


def prepare(
    engine: Engine,
    task: np.ndarray,
    dtype: torch.dtype,
    found: Layout,
    scales: Scales,
    key: RoundingKey | None,
) -> Tensor:
    """Make a tensor ready to be encoded; what is returned must outlive the launches.

    Args:
        engine: runs the kernels.
        task: ``Tensor`` without its scales and noise. Scales that span more than a block are made
            here, and then its flags have been raised.
        dtype: of the elements.
        found: the parts.
        scales: to be written; maxima begin with what is there.
        key: of stochastic rounding, None for nearest.
    """
    memory = _place_scales(engine, task, found, scales)
    if key is not None:
        describe_noise(task["noise"], key)
    if not found.block:
        _make_scales(engine, task, dtype, found)
        task["flags"] = 0
    return memory


def _make_scales(engine: Engine, task: np.ndarray, dtype: torch.dtype, found: Layout) -> None:
    """New scales of a tensor whose scales span more than a block."""
    engine.launch_over(entry("find_maxima", DTYPES[dtype]), tiles(int(task["numel"])), task)
    if found.eight_bit:
        engine.launch_over(entry("find_tensor_ends"), chunks(found), task)
        engine.launch(entry("new_tensor_grids"), len(found.geometry.parts), task)
        engine.launch_over(entry("round_tensor_scales"), chunks(found), task)


def store_scales(engine: Engine, task: np.ndarray, found: Layout) -> None:
    """Store what `prepare` made, where it did not do so at once."""
    if found.eight_bit:
        engine.launch_over(entry("commit_tensor_scales"), chunks(found), task)


def dequantize(
    engine: Engine, packed: Tensor, scales: Scales, normalizer: Normalizer, map_: Map, out: Tensor
) -> None:
    """Decode into `out`: contiguous, float32, float16 or bfloat16, on the engine's device."""
    found = layout_of(normalizer, tuple(out.shape))
    assert found is not None
    task = described(out, packed, map_, found)
    memory = describe_stored(engine, task, found, scales)
    decode = entry("decode", DTYPES[out.dtype], format_name(map_, found, stochastic=False))
    engine.launch_over(decode, tiles(out.numel()), task)
    del memory  # it was needed until here


def describe_stored(
    engine: Engine, task: np.ndarray, found: Layout, scales: Sequence[Tensor]
) -> Tensor:
    """Fill in scales as they are stored; what is returned must outlive the launches."""
    memory = _place_scales(engine, task, found, scales)
    if found.eight_bit:
        engine.launch(entry("read_tensor_grids"), len(found.geometry.parts), task)
    return memory


def _place_scales(
    engine: Engine, task: np.ndarray, found: Layout, scales: Sequence[Tensor]
) -> Tensor:
    """Fill in where scales lie, with room for what is made of them; returns the room."""
    room = Workspace()
    places = room.place(found, fresh_floats=False)
    memory = room.memory(engine.device)
    describe_scales(task["scales"], found, scales, places, memory)
    return memory


def described(x: Tensor, packed: Tensor | None, map_: Map, found: Layout) -> np.ndarray:
    """``Tensor`` without its scales and noise."""
    task = np.zeros((), dtype=layout.TENSOR)
    task["x"], task["numel"] = address(x), x.numel()
    needed = packed_bytes(x.numel(), map_.bits)
    task["packed"] = 0 if packed is None else address(packed, needed, "packed")
    task["book"] = book(map_, x.device).described
    task["scales"]["parts"] = len(found.geometry.parts)
    return task
