"""The structures that kernels take as arguments, as the headers of ``src`` define them.

The headers' numbers and structures are compared with these when a kernel is compiled. Names are
those of the C++ structures; addresses are 64-bit integers.
"""

from __future__ import annotations

import numpy as np

from qmaps.engines.search_tables import MAX_GUESSES as MAX_GUESSES
from qmaps.engines.support import MAX_PARTS as MAX_PARTS

MAX_STATES = 4
MAX_SCALARS = 24
MAX_CODES = 256
GRID_FLOATS = 516
THREADS = 256
WARPS = THREADS // 32
UNIT = 8
TILE = THREADS * UNIT
NORM_CHUNK = 2 * TILE
ROW_CHUNK, COLUMN_CHUNK = 512, 64
SCALES_CHUNK = 4096
SORTED = 4096
DOUBLE = 32

_address, _i64, _i32, _i16, _u32 = "<u8", "<i8", "<i4", "<i2", "<u4"
_u64, _double = "<u8", "<f8"

PART = np.dtype(
    [("divisor", _i64), ("count", _i64)]
    + [(name, _address) for name in ("values", "codes", "ends", "stored", "grid", "fresh", "made")]
    + [("kind", _i64)]
)
SCALES = np.dtype(
    [
        ("part", PART, MAX_PARTS),
        ("parts", _i64),
        ("log", _i64),
        ("quantile", _double),
        ("ratio", _double),
    ]
)
SEARCH = np.dtype(
    [("limit", _address), ("guess", _address)]
    + [(name, _i32) for name in ("shift", "first", "buckets", "negative")]
    + [("cells", _address), ("cell", "<f4"), ("cell_count", _i32), ("below", _address)]
)
CODEBOOK = np.dtype(
    [("values", _address), ("nearest", SEARCH), ("lower", SEARCH), ("size", _i64), ("ties", _i64),
     ("half", _i64), ("zero", _i32), ("most", _i32), ("in_log", _i32), ("bend", "<f4")]
)  # fmt: skip
NOISE = np.dtype(
    [(name, _u32) for name in ("key0", "key1", "word1", "word2", "word3", "unused")]
    + [("offset", _i64)]
)
TENSOR = np.dtype(
    [("x", _address), ("packed", _address), ("numel", _i64), ("flags", _address),
     ("refuse_negative", _i64), ("scales", SCALES), ("codebook", CODEBOOK), ("noise", NOISE)]
)  # fmt: skip
STATE = np.dtype([("packed", _address), ("data", _address), ("scales", SCALES), ("noise", NOISE)])
FACTORED_STATES = np.dtype(
    [("slices", SCALES), ("rows", _i64), ("columns", _i64)]
    + [(name, _address) for name in ("row_factor", "column_factor", "row_sums", "column_sums")]
)
PARAMETER = np.dtype(
    [("numel", _i64), ("scalars", "<f4", MAX_SCALARS), ("group", _i64), ("counter", _address),
     ("product", _address),
     ("sums", _address), ("step", _u64), ("skips", _i64), ("remainder", _address),
     ("noise", NOISE), ("state", STATE, MAX_STATES), ("factored", FACTORED_STATES)]
)  # fmt: skip
ADDRESS = np.dtype([("p", _address), ("g", _address)])
ITEM = np.dtype([("parameter", _i32), ("tile", _i32)])
STEP_SCALAR = np.dtype(
    [(name, "<f8") for name in ("a", "b", "c")] + [("tensor", _address), ("kind", _i64)]
)
BATCH = np.dtype(
    [(name, _address) for name in ("parameters", "addresses", "items")]
    + [
        ("count", _i64),
        ("skip", _address),
        ("grad_scale", _address),
        ("codebook", CODEBOOK, MAX_STATES),
    ]
)
PROLOGUE = np.dtype(
    [("parameters", _address), ("count", _i64)]
    + [(name, _address)
       for name in ("step_scalars", "resets", "found_inf", "bad", "skip", "skipped")]
)  # fmt: skip
GRADIENT_CHECK = np.dtype(
    [(name, _address) for name in ("parameters", "addresses", "items")]
    + [("count", _i64), ("bad", _address)]
)
MULTI_BLOCK_ITEM = np.dtype([("parameter", _i32), ("state", _i16), ("part", _i16), ("chunk", _i64)])
MULTI_BLOCK = np.dtype(
    [("parameters", _address), ("items", _address), ("count", _i64), ("skip", _address)]
)
STRETCHES = np.dtype(
    [("x", _address), ("size", _i64), ("rows", _i64), ("below", _address), ("fraction", _address),
     ("count", _i64), ("quantiles", _address), ("sums", _address), ("bad", _address)]
)  # fmt: skip
WRITTEN = 480
WRITE = np.dtype([("to", _address), ("count", _i64), ("word", "<u8", WRITTEN)])
STRUCTURES = {
    name.title().replace("_", ""): dtype
    for name, dtype in dict(globals()).items()
    if isinstance(dtype, np.dtype)
}
"""Every structure by its name in C++."""
