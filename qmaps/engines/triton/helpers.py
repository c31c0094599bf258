"""Functions of Triton that all kernels share; `qmaps.engines.triton.source` writes the kernels.

Bits hang on these: division and roots are IEEE (`divide`, `root`), NaN goes through maxima as
integers, and halves are rounded by operations on integers where compilers and Triton's interpreter
differ. All kernels are compiled without fused multiply-add (``enable_fp_fusion=False``).
"""

# Triton reads the source of these functions; `tl.constexpr` of their parameters are annotations.

# ruff: noqa: SIM108  (Triton has no conditional expression of tensors)

import triton
import triton.language as tl


@triton.jit
def divide(x, y):
    """The quotient, rounded to nearest."""
    return tl.math.div_rn(x, y)


@triton.jit
def root(x):
    """The square root, rounded to nearest."""
    return tl.math.sqrt_rn(x)


@triton.jit
def from_bf16(bits):
    """The float32 of 16 bits of bfloat16."""
    return (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def to_bf16(x):
    """The nearest bfloat16 as 16 bits, a tie going to the even one."""
    bits = x.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(x == x, rounded, 0x7FC0).to(tl.int16)


@triton.jit
def within(at, end, WHOLE: tl.constexpr):
    """Mask of the places before the end.

    For whole tiles it is a constant: without masks several elements are moved at once.
    """
    if WHOLE:
        ok = tl.full(at.shape, True, tl.int1)
    else:
        ok = at < end
    return ok


@triton.jit
def read(base, at, ok, DTYPE: tl.constexpr, DIVISOR: tl.constexpr):
    """Numbers of a tile in float32; 0 beyond the end."""
    if DTYPE == "float32":
        start = tl.multiple_of(base.to(tl.pointer_type(tl.float32)), DIVISOR)
        x = tl.load(start + at, ok, 0.0)
    elif DTYPE == "float16":
        halves = tl.multiple_of(base.to(tl.pointer_type(tl.float16)), DIVISOR)
        x = tl.load(halves + at, ok, 0.0).to(tl.float32)
    else:
        words = tl.multiple_of(base.to(tl.pointer_type(tl.int16)), DIVISOR)
        x = from_bf16(tl.load(words + at, ok, 0))
    return x


@triton.jit
def write(base, at, ok, x, DTYPE: tl.constexpr, DIVISOR: tl.constexpr):
    """Write float32 numbers, rounded to nearest."""
    if DTYPE == "float32":
        tl.store(tl.multiple_of(base.to(tl.pointer_type(tl.float32)), DIVISOR) + at, x, ok)
    elif DTYPE == "float16":
        start = tl.multiple_of(base.to(tl.pointer_type(tl.float16)), DIVISOR)
        tl.store(start + at, x.to(tl.float16), ok)
    else:
        start = tl.multiple_of(base.to(tl.pointer_type(tl.int16)), DIVISOR)
        tl.store(start + at, to_bf16(x), ok)


@triton.jit
def round_stochastically(x, draw):
    """Float32 numbers with the lower 16 bits 0; see `qmaps.engines.bfloat16`."""
    bits = (x.to(tl.int32, bitcast=True) + draw) & -65536
    return tl.where(tl.abs(x) < float("inf"), bits.to(tl.float32, bitcast=True), x)


@triton.jit
def unpack(
    base, tile, n, BITS: tl.constexpr, TILE: tl.constexpr, STRIDE: tl.constexpr,
    DIVISOR: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The int32 codes of a tile; of those beyond the end some number in range."""
    start = tl.multiple_of(base.to(tl.pointer_type(tl.uint8)), DIVISOR)
    bytes_ = (n * BITS + 7) // 8
    if BITS == 8 or BITS == 4 or BITS == 2:
        PER: tl.constexpr = 8 // BITS
        at = tile * (STRIDE // PER) + tl.arange(0, TILE // PER)
        codes = tl.load(start + at, within(at, bytes_, WHOLE), 0).to(tl.int32)
        if BITS == 4:
            codes = tl.reshape(tl.join(codes & 15, codes >> 4), (TILE,))
        if BITS == 2:
            even = tl.join(codes & 3, (codes >> 4) & 3)
            odd = tl.join((codes >> 2) & 3, codes >> 6)
            codes = tl.reshape(tl.join(even, odd), (TILE,))
    else:  # eight codes in `BITS` bytes
        byte_number = tl.arange(0, 8)[None, :]
        at = tile * (STRIDE // 8 * BITS) + tl.arange(0, TILE // 8)[:, None] * BITS + byte_number
        byte = tl.load(start + at, (byte_number < BITS) & (at < bytes_), 0).to(tl.int64)
        word = tl.sum(byte << (8 * byte_number).to(tl.int64), 1)
        wide = (word[:, None] >> (BITS * byte_number).to(tl.int64)) & ((1 << BITS) - 1)
        codes = tl.reshape(wide.to(tl.int32), (TILE,))
    return codes


@triton.jit
def pack(
    base, tile, n, codes, BITS: tl.constexpr, TILE: tl.constexpr, STRIDE: tl.constexpr,
    DIVISOR: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Write the codes of a tile; those beyond the end are 0."""
    start = tl.multiple_of(base.to(tl.pointer_type(tl.uint8)), DIVISOR)
    bytes_ = (n * BITS + 7) // 8
    if BITS == 8 or BITS == 4 or BITS == 2:
        PER: tl.constexpr = 8 // BITS
        at = tile * (STRIDE // PER) + tl.arange(0, TILE // PER)
        if BITS == 4:
            low, high = tl.split(tl.reshape(codes, (TILE // 2, 2)))
            codes = low | (high << 4)
        if BITS == 2:
            even, odd = tl.split(tl.reshape(codes, (TILE // 4, 2, 2)))
            pairs = even | (odd << 2)
            low, high = tl.split(pairs)
            codes = low | (high << 4)
        ok = within(at, bytes_, WHOLE)
        if TILE != STRIDE:
            ok = ok & (tl.arange(0, TILE // PER) < STRIDE // PER)
        tl.store(start + at, codes.to(tl.uint8), ok)
    else:
        number = tl.arange(0, 8)[None, :]
        groups = tl.reshape(codes, (TILE // 8, 8)).to(tl.int64)
        word = tl.sum(groups << (BITS * number).to(tl.int64), 1)
        byte = (word[:, None] >> (8 * number).to(tl.int64)) & 255
        group = tl.arange(0, TILE // 8)[:, None]
        at = tile * (STRIDE // 8 * BITS) + group * BITS + number
        own = (number < BITS) & (group < STRIDE // 8)
        tl.store(start + at, byte.to(tl.uint8), own & (at < bytes_))


@triton.jit
def read_scales(
    base, tile, n, KIND: tl.constexpr, BLOCK: tl.constexpr, COUNT: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """The float32 scales of the blocks of a tile."""
    at = tile * COUNT + tl.arange(0, COUNT)
    ok = within(at * BLOCK, n, WHOLE)
    if KIND == "FLOAT32":
        scales = tl.load(base.to(tl.pointer_type(tl.float32)) + at, ok, 0.0)
    elif KIND == "POWER_OF_TWO":
        exponent = tl.load(base.to(tl.pointer_type(tl.uint8)) + at, ok, 0).to(tl.int32)
        scales = (exponent << 23).to(tl.float32, bitcast=True)
    elif KIND == "BFLOAT16":
        scales = from_bf16(tl.load(base.to(tl.pointer_type(tl.int16)) + at, ok, 0))
    else:
        scales = tl.load(base.to(tl.pointer_type(tl.float16)) + at, ok, 0.0).to(tl.float32)
        if KIND == "FLOAT16_SQUARED":
            scales = scales * scales
    return scales


@triton.jit
def write_scales(
    base, tile, n, bits, KIND: tl.constexpr, BLOCK: tl.constexpr, COUNT: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """Store the largest magnitudes of blocks, as bits; returns the scales that decode them."""
    at = tile * COUNT + tl.arange(0, COUNT)
    ok = within(at * BLOCK, n, WHOLE)
    scale = bits.to(tl.float32, bitcast=True)
    finite = bits < 0x7F800000
    if KIND == "FLOAT32":
        tl.store(base.to(tl.pointer_type(tl.float32)) + at, scale, ok)
    elif KIND == "POWER_OF_TWO":
        code = tl.where(finite, tl.minimum((bits >> 23) + 1, 254), 255)
        code = tl.where(bits == 0, 0, code)
        tl.store(base.to(tl.pointer_type(tl.uint8)) + at, code.to(tl.uint8), ok)
        scale = (code << 23).to(tl.float32, bitcast=True)
    elif KIND == "BFLOAT16":
        half = tl.minimum((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, 0x7F7F)
        half = tl.where(bits > 0, tl.maximum(half, 1), 0)
        half = tl.where(finite, half, tl.where(bits == 0x7F800000, 0x7F80, 0x7FC0)).to(tl.int16)
        tl.store(base.to(tl.pointer_type(tl.int16)) + at, half, ok)
        scale = from_bf16(half)
    else:
        if KIND == "FLOAT16_SQUARED":
            scale = root(scale)
        smallest = 5.960464477539063e-08
        stored = tl.where(finite & (scale > 65504.0), 65504.0, scale)
        stored = tl.where((scale > 0.0) & (stored < smallest), smallest, stored).to(tl.float16)
        tl.store(base.to(tl.pointer_type(tl.float16)) + at, stored, ok)
        scale = stored.to(tl.float32)
        if KIND == "FLOAT16_SQUARED":
            scale = scale * scale
    return scale


@triton.jit
def spread_out(scales, COUNT: tl.constexpr, TILE: tl.constexpr):
    """The scale of each element of a tile, from those of its blocks."""
    return tl.reshape(tl.broadcast_to(scales[:, None], (COUNT, TILE // COUNT)), (TILE,))


@triton.jit
def divisors(scales):
    """Scales to divide by: blocks whose scale is 0 hold zeros alone."""
    return tl.where(scales == 0.0, 1.0, scales)


@triton.jit
def largest(x, ok, COUNT: tl.constexpr, TILE: tl.constexpr):
    """The largest magnitude of each block, as bits: NaN is above infinity."""
    bits = tl.where(ok, x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0)
    return tl.max(tl.reshape(bits, (COUNT, TILE // COUNT)), 1)


@triton.jit
def limits_below(
    n, limits, guess, SHIFT: tl.constexpr, FIRST: tl.constexpr, BUCKETS: tl.constexpr,
    SIGNED: tl.constexpr, STEPS: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """The number of limits below each value, but at most `LAST`, which NaN takes.

    The upper bits of a value are the number of a bucket, whose guess few halvings correct; see
    `qmaps.engines.search_tables.Guesses`.
    """
    bits = n.to(tl.int32, bitcast=True)
    bucket = tl.minimum(tl.maximum(((bits & 0x7FFFFFFF) >> SHIFT) - FIRST, 0), BUCKETS - 1)
    if SIGNED:  # NaN is not below 0, and goes to the last code by every comparison
        bucket = tl.where(n < 0.0, bucket + BUCKETS, bucket)
    else:
        bucket = tl.where(n < 0.0, 0, bucket)
    code = tl.load(guess + bucket).to(tl.int32)
    for step in tl.static_range(STEPS - 1, -1, -1):
        limit = tl.load(limits + (code + ((1 << step) - 1)))
        code = tl.where(n <= limit, code, code + (1 << step))
    return tl.minimum(code, LAST)


@triton.jit
def one_of_two(n, r, lower, book, BEND: tl.constexpr, LAST: tl.constexpr):
    """One of the two codes around each value; see `qmaps.engines.reference`."""
    upper = tl.minimum(lower + 1, LAST)
    low = tl.load(book + lower)
    over = n - low
    gap = tl.load(book + upper) - low
    if BEND != 0.0:
        bent = over * BEND
        over = over + bent
        gap = gap + bent
    return tl.where(r * gap < over, upper, lower)


@triton.jit
def uniform(draw):
    """Numbers of `qmaps.algebra.philox.uniform`."""
    return (draw.to(tl.float32) + 0.5) * 0.0000152587890625


@triton.jit
def spread_draws(first, base, step, TILE: tl.constexpr):
    """Draws of ``+qsr``; `step` is the product with ``PER_STEP``, in 32 bits."""
    per_element = tl.full([1], 0xC13FA9A9, tl.uint32)
    begin = base.to(tl.uint32) + step.to(tl.uint32, bitcast=True)
    begin = begin + first.to(tl.uint32) * per_element
    own = tl.arange(0, TILE).to(tl.uint32) * per_element
    return ((own + begin) >> 16).to(tl.int32)


@triton.jit
def random_draws(first, key, word1, word2, step, high, TILE: tl.constexpr):
    """Draws of ``+sr`` for a tile whose first element has a number divisible by 8."""
    block = first // 8 + tl.arange(0, TILE // 8)
    zero = tl.zeros_like(block).to(tl.int32)
    c0 = block.to(tl.int32)
    c1 = (block >> 32).to(tl.int32) | word1.to(tl.int32)
    seed = key | (high.to(tl.int64) << 32)
    a, b, c, d = tl.philox(seed, c0, c1, zero + word2.to(tl.int32), zero + step, 7)
    words = tl.join(tl.join(a, c), tl.join(b, d))
    halves = tl.join(words & 0xFFFF, words >> 16)
    return tl.reshape(halves, (TILE,)).to(tl.int32)
