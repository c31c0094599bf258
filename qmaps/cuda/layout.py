"""The structures that kernels are given, as the files in ``src`` have them.

Each name is that of the C++ structure; addresses are 64-bit integers.
"""

from __future__ import annotations

import numpy as np

MAX_PARTS = 8
MAX_STATES = 3
MAX_SCALARS = 16
MAX_CODES = 256
MAX_GUESSES = 4096
GRID_FLOATS = 516
THREADS = 256
UNIT = 8
TILE = THREADS * UNIT
NORM_CHUNK = 2 * TILE
SCALES_CHUNK = 4096
NON_FINITE, NEGATIVE = 1, 2

_address, _i64, _i32, _i16, _u32 = "<u8", "<i8", "<i4", "<i2", "<u4"

PART = np.dtype(
    [("divisor", _i64), ("count", _i64)]
    + [(name, _address) for name in ("values", "codes", "ends", "grid", "fresh")]
)
SCALES = np.dtype([("part", PART, MAX_PARTS), ("parts", _i64)])
SEARCH = np.dtype(
    [("limit", _address), ("guess", _address)]
    + [(name, _i32) for name in ("shift", "first", "buckets", "negative")]
)
BOOK = np.dtype([("values", _address), ("nearest", SEARCH), ("lower", SEARCH), ("size", _i64)])
NOISE = np.dtype(
    [(name, _u32) for name in ("seed", "purpose", "word1", "word2", "word3", "unused")]
    + [("offset", _i64)]
)
TENSOR = np.dtype(
    [("x", _address), ("packed", _address), ("numel", _i64), ("flags", _address),
     ("refuse_negative", _i64), ("scales", SCALES), ("book", BOOK), ("noise", NOISE)]
)  # fmt: skip
STATE = np.dtype([("packed", _address), ("data", _address), ("scales", SCALES), ("noise", NOISE)])
PARAMETER = np.dtype(
    [("numel", _i64), ("scalars", "<f4", MAX_SCALARS), ("group", _i64), ("counter", _address),
     ("sums", _address), ("step", _u32), ("skips", _i32), ("noise", NOISE),
     ("state", STATE, MAX_STATES)]
)  # fmt: skip
ADDRESS = np.dtype([("p", _address), ("g", _address)])
ITEM = np.dtype([("parameter", _i32), ("tile", _i32)])
CONSTANT = np.dtype(
    [(name, "<f8") for name in ("a", "b", "c")] + [("tensor", _address), ("kind", _i64)]
)
BATCH = np.dtype(
    [(name, _address) for name in ("parameters", "addresses", "items")]
    + [("count", _i64), ("skip", _address), ("grad_scale", _address), ("book", BOOK, MAX_STATES)]
)
BEGIN = np.dtype(
    [("parameters", _address), ("count", _i64)]
    + [(name, _address) for name in ("constants", "found_inf", "bad", "skip", "skipped")]
)
LOOK = np.dtype(
    [(name, _address) for name in ("parameters", "addresses", "items")]
    + [("count", _i64), ("bad", _address)]
)
WIDE_ITEM = np.dtype([("parameter", _i32), ("state", _i16), ("part", _i16), ("chunk", _i64)])
WIDE = np.dtype(
    [("parameters", _address), ("items", _address), ("count", _i64), ("skip", _address)]
)
WRITTEN = 480
WRITE = np.dtype([("to", _address), ("count", _i64), ("word", "<u8", WRITTEN)])

STRUCTURES = {
    "Part": PART, "Scales": SCALES, "Search": SEARCH, "Book": BOOK, "Noise": NOISE,
    "Tensor": TENSOR, "State": STATE, "Parameter": PARAMETER, "Address": ADDRESS, "Item": ITEM,
    "Constant": CONSTANT, "Batch": BATCH, "Begin": BEGIN, "Look": LOOK, "WideItem": WIDE_ITEM,
    "Wide": WIDE, "Write": WRITE,
}  # fmt: skip
"""By the name that C++ has for each."""
