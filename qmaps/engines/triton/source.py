"""Kernels as text: a traced rule between the decoding and the encoding of its states.

A kernel is written for one kind of parameters (`Kind`). Each program takes one tile of one
parameter: it looks up the row of the parameter in a table, decodes the states, computes the lines
of the trace, and encodes. `describe` writes the rows.
"""

from __future__ import annotations

import linecache
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra.philox import PER_STEP, RoundingKey
from qmaps.algebra.quantizer import Quantizer
from qmaps.algebra.rounding import Rounding
from qmaps.engines.search_tables import guesses, searches
from qmaps.engines.triton.trace import Trace, constant
from qmaps.maps.base import Map, cached, limits, table
from qmaps.normalize.base import Normalizer, geometry_of

TILE, LARGEST = 1024, 4096
"""Elements of a tile, and the most that one has, for larger blocks."""
DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
SCALES = ("FLOAT32", "FLOAT16", "BFLOAT16", "FLOAT16_SQUARED", "POWER_OF_TWO")
"""Formats of scales in which a scale depends on its own block alone."""
BYTE = 8
ALIGNED = 16
COLUMNS = 6
"""Numbers of a state, or of the parameter's own rounding, in a row of the table: addresses of codes
and scales, and the key, the two words and the offset of its random numbers."""
WORD = 1 << 32


@dataclass(frozen=True)
class StateKind:
    """The format of a state.

    Attributes:
        bits: width of codes; 32 for float32 numbers without codes.
        block: elements of a scale; 0 for one scale of a whole parameter within one tile.
        scales: the name of its `ScaleKind`.
        rounding: of values to codes.
        bend: see `qmaps.maps.base.Map.bend`.
        last: the highest code.
        signed: whether the codebook has negative values.
        search: `limits_below`'s numbers of the search for codes.
    """

    bits: int = 32
    block: int = 1
    scales: str = "FLOAT32"
    rounding: Rounding = Rounding.NEAREST
    bend: float = 0.0
    last: int = 0
    signed: bool = True
    search: tuple[int, int, int, bool, int] = (0, 0, 0, False, 0)


PLAIN = StateKind()


@dataclass(frozen=True)
class Kind:
    """What a kernel is written for.

    Attributes:
        param: dtype of the parameter.
        gradient: dtype of the gradient.
        states: formats of the states, in the order of the trace.
        stride: elements from one tile to the next.
        rounds: whether the parameter is rounded stochastically.
        scaled: whether gradients are divided by a scale.
        whole: whether all tiles are whole: those that are not take a launch of their own.
        mode: "step", or "quantize" and "dequantize", which only encode or decode.
    """

    param: str
    gradient: str
    states: tuple[StateKind, ...]
    stride: int
    rounds: bool = False
    scaled: bool = False
    whole: bool = False
    mode: str = "step"

    @property
    def tile(self) -> int:
        """Elements of a tile, with those beyond the stride that are masked."""
        return 1 << (self.stride - 1).bit_length()

    @property
    def warps(self) -> int:
        return max(1, min(8, self.tile // 256))


@lru_cache(maxsize=4096)
def reason(normalizer: Normalizer, map_: Map, shape: tuple[int, ...]) -> str:
    """Reason why kernels do not have a quantizer; empty if they do."""
    if map_.fitted:
        return f"{map_.spec} is fitted"
    if map_.bits > BYTE:
        return f"{map_.spec} has more than {BYTE} bits"
    geometry, numel = geometry_of(normalizer, shape), math.prod(shape)
    if geometry is None or len(geometry.parts) != 1 or geometry.log:
        return f"{normalizer.spec} is not one scale for each block"
    part = geometry.parts[0]
    if part.ends is not None or part.stored.name not in SCALES:
        return f"scales of {normalizer.spec} depend on those of other blocks"
    if part.divisor * part.count < numel:
        return f"scales of {normalizer.spec} span several blocks"
    block = numel if part.count == 1 else part.divisor
    if block > LARGEST:
        return f"blocks of {normalizer.spec} have more than {LARGEST} elements"
    if bool((table(map_)[1:] == table(map_)[:-1]).any()):
        return f"{map_.spec} has equal values"
    if part.count > 1 and block & (block - 1) and block % 8:
        return f"blocks of {normalizer.spec} are not a power of two or a multiple of 8 elements"
    return ""


def state_kind(
    normalizer: Normalizer, map_: Map, rounding: Rounding, shape: tuple[int, ...]
) -> StateKind:
    """The format of a state under a supported quantizer."""
    geometry = geometry_of(normalizer, shape)
    assert geometry is not None  # `reason` was asked
    part = geometry.parts[0]
    block = 0 if part.count <= 1 else part.divisor
    values = table(map_)
    found = searches(map_, guesses)[rounding.stochastic]
    signed = len(found.counts) > found.buckets
    search = found.shift, found.first, found.buckets, signed, found.steps
    kind = part.stored.name
    negative = bool(values[0] < 0)
    return StateKind(map_.bits, block, kind, rounding, map_.bend, len(values) - 1, negative, search)


def kind_of(q: Quantizer | None, shape: tuple[int, ...]) -> StateKind:
    """`state_kind` under a quantizer; None is float32."""
    return PLAIN if q is None else state_kind(q.normalizer, q.map, q.rounding, shape)


def stride_of(kinds: Sequence[StateKind], numel: int) -> int:
    """Elements from one tile to the next; 0 if no tile holds whole blocks of all states."""
    blocks = {kind.block for kind in kinds if kind.bits != PLAIN.bits}
    least = TILE
    if 0 in blocks:  # one block, which may as well be larger than the parameter
        least = max(TILE, 1 << max(numel - 1, 0).bit_length())
        blocks.discard(0)
    if all(block & (block - 1) == 0 for block in blocks):
        stride = max([least, *blocks])
        return stride if stride <= LARGEST else 0
    return blocks.pop() if len(blocks) == 1 and least == TILE else 0


def tiles_of(kind: Kind, numels: Sequence[int], device: torch.device) -> list[tuple[Kind, Tensor]]:
    """Tiles of parameters of these sizes: pairs of a parameter and a tile, as kernels take them.

    Returns:
        The kind and the tiles of each launch: those that are whole, and the last ones.
    """
    sizes = torch.tensor(numels, dtype=torch.int64)
    whole = sizes // kind.stride if kind.stride == kind.tile else torch.zeros_like(sizes)
    number = torch.arange(len(sizes), dtype=torch.int32)
    launches = []
    for first, end in ((torch.zeros_like(sizes), whole), (whole, -(-sizes // kind.stride))):
        counts = end - first
        if total := int(counts.sum()):
            before = torch.repeat_interleave(counts.cumsum(0) - counts - first, counts)
            tiles = (torch.arange(total, dtype=torch.int64) - before).to(torch.int32)
            items = torch.stack([torch.repeat_interleave(number, counts), tiles], 1)
            launches.append((replace(kind, whole=end is whole), items.to(device)))
    return launches


@cached(512)
def tables_of(map_: Map, rounding: Rounding, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Codebook, limits and guesses of a map on a device; the first two are filled up."""
    values, above = table(map_), limits(map_)
    if rounding.stochastic:  # n >= value is n > the float below it; 0 for -0
        above = torch.nextafter(values[1:], values.new_tensor(-torch.inf)) + 0.0
    book = values.new_full((1 << map_.bits,), float(values[-1]))
    bounds = values.new_full((2 << map_.bits,), torch.inf)
    book[: len(values)], bounds[: len(above)] = values, above
    guess = torch.from_numpy(searches(map_, guesses)[rounding.stochastic].counts)
    return book.to(device), bounds.to(device), guess.to(device)


def noise_words(key: RoundingKey | None) -> tuple[int, int, int, int]:
    """The numbers of a key in a row of the table."""
    if key is None:
        return 0, 0, 0, 0
    seed, key1, word1, word2, _, offset = key.words()
    return seed | (0 if key.spread else key1 << 32), word1, word2, offset


def step_words(step: int) -> tuple[int, int, int]:
    """What kernels get to know of the number of a step, in signed words of 32 bits."""
    words = step % WORD, step // WORD << 8, step * PER_STEP % WORD
    return tuple(word - WORD if word >= WORD // 2 else word for word in words)  # type: ignore[return-value]


STEP_WORDS = ("step", "high", "spread")


def arguments(trace: Trace, kind: Kind) -> list[str]:
    """Names of a kernel's arguments."""
    names = ["table", "items", "gradients", "grad_scale", *STEP_WORDS]
    names += [f"s{number}" for number in range(len(trace.scalars))]
    for number, state in enumerate(kind.states):
        if state.bits != PLAIN.bits:
            names += [f"{table_}{number}" for table_ in ("book", "limits", "guess")]
    return names


def text_of(trace: Trace, kind: Kind, *, aligned: bool) -> str:
    """The source of a kernel."""
    return "\n".join(_lines(trace, kind, ALIGNED if aligned else 1)) + "\n"


def _lines(trace: Trace, kind: Kind, divisor: int) -> Iterator[str]:
    stride, tile = kind.stride, kind.tile
    used = set(re.findall(r"\w+", " ".join([*trace.lines, trace.param, *trace.states.values()])))
    yield f"@triton.jit(do_not_specialize={list(STEP_WORDS)})"
    yield f"def kernel({', '.join(arguments(trace, kind))}):"
    yield from (
        "    item = tl.program_id(0)",
        "    number = tl.load(items + 2 * item).to(tl.int64)",
        "    tile = tl.load(items + 2 * item + 1).to(tl.int64)",
        f"    row = table + number * {2 + COLUMNS * (1 + len(kind.states))}",
        "    n = tl.load(row)",
        f"    at = tile * {stride} + tl.arange(0, {tile})",
        f"    ok = within(at, n, {kind.whole})",
    )
    if stride != tile:
        yield f"    ok = ok & (tl.arange(0, {tile}) < {stride})"
    if kind.mode != "dequantize":
        yield f"    p = read(tl.load(row + 1), at, ok, {kind.param!r}, {divisor})"
    if kind.mode == "step":
        yield f"    g = read(tl.load(gradients + number), at, ok, {kind.gradient!r}, {divisor})"
        if kind.scaled:
            yield "    g = divide(g, tl.load(grad_scale))"
    for number, state in enumerate(kind.states):
        if f"v{number}" in used or kind.mode == "dequantize":
            yield from _decoding(number, state, kind, divisor)
    for line in trace.lines:
        yield f"    {line}"
    if kind.mode != "quantize":
        yield f"    new = tl.broadcast_to({trace.param}, [{tile}])"
        if kind.rounds:
            yield from _draws("draw", 2, Rounding.STOCHASTIC, kind)
            yield "    new = round_stochastically(new, draw)"
        yield f"    write(tl.load(row + 1), at, ok, new, {kind.param!r}, {divisor})"
    if kind.mode != "dequantize":
        for number, value in enumerate(trace.states.values()):
            yield f"    w{number} = tl.broadcast_to({value}, [{tile}])"
        for number, state in enumerate(kind.states):
            yield from _encoding(number, state, kind, divisor)


def _shape(state: StateKind, kind: Kind) -> tuple[int, int]:
    """Elements of a state's block, and the number of blocks in a tile."""
    block = state.block if 0 < state.block < kind.stride else kind.stride
    return block, kind.stride // block


def _decoding(number: int, state: StateKind, kind: Kind, divisor: int) -> Iterator[str]:
    at = 2 + COLUMNS * (1 + number)
    if state.bits == PLAIN.bits:
        yield f"    v{number} = read(tl.load(row + {at}), at, ok, 'float32', {divisor})"
        return
    block, count = _shape(state, kind)
    places = f"{state.bits}, {kind.tile}, {kind.stride}, {divisor}, {kind.whole}"
    blocks = f"{state.scales!r}, {block}, {count}, {kind.whole}"
    yield f"    codes = unpack(tl.load(row + {at}), tile, n, {places})"
    yield f"    scales = read_scales(tl.load(row + {at + 1}), tile, n, {blocks})"
    yield f"    scales = spread_out(scales, {count}, {kind.tile})"
    yield f"    v{number} = tl.load(book{number} + codes) * scales"


def _encoding(number: int, state: StateKind, kind: Kind, divisor: int) -> Iterator[str]:
    at, value = 2 + COLUMNS * (1 + number), f"w{number}"
    if state.bits == PLAIN.bits:
        yield f"    write(tl.load(row + {at}), at, ok, {value}, 'float32', {divisor})"
        return
    block, count = _shape(state, kind)
    yield f"    high_bits = largest({value}, ok, {count}, {kind.tile})"
    blocks = f"{state.scales!r}, {block}, {count}, {kind.whole}"
    yield f"    scales = write_scales(tl.load(row + {at + 1}), tile, n, high_bits, {blocks})"
    yield f"    unit = divide({value}, spread_out(divisors(scales), {count}, {kind.tile}))"
    search = ", ".join(map(str, (*state.search, state.last)))
    yield f"    codes = limits_below(unit, limits{number}, guess{number}, {search})"
    if state.rounding.stochastic:
        yield from _draws("draw", at, state.rounding, kind)
        yield "    r = uniform(draw)"
        if state.rounding is Rounding.QUASI_STOCHASTIC and state.signed:
            yield "    r = tl.where(unit < 0.0, 1.0 - r, r)"
        bend = constant(state.bend)
        yield f"    codes = one_of_two(unit, r, codes, book{number}, {bend}, {state.last})"
    places = f"{state.bits}, {kind.tile}, {kind.stride}, {divisor}, {kind.whole}"
    yield f"    pack(tl.load(row + {at}), tile, n, tl.where(ok, codes, 0), {places})"


def _draws(name: str, at: int, rounding: Rounding, kind: Kind) -> Iterator[str]:
    words = ", ".join(f"tl.load(row + {at + place})" for place in (2, 3, 4))
    first = f"tile * {kind.stride} + tl.load(row + {at + 5})"
    if rounding is Rounding.QUASI_STOCHASTIC:
        base = f"tl.load(row + {at + 4})"
        yield f"    {name} = spread_draws({first}, {base}, spread, {kind.tile})"
    else:
        yield f"    {name} = random_draws({first}, {words}, step, high, {kind.tile})"


@lru_cache(maxsize=1024)
def built(text: str) -> Any:
    """The kernel of a source, for Triton to compile when it is launched."""
    from qmaps.engines.triton import helpers

    file = f"<qmaps kernel {hash(text) & 0xFFFFFFFFFFFF:x}>"
    # Triton reads the source of its functions as a debugger would.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope = {name: value for name, value in vars(helpers).items() if not name.startswith("__")}
    scope["__name__"] = __name__
    exec(compile(text, file, "exec"), scope)
    return scope["kernel"]
