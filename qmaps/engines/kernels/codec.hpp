// What encoding and decoding do with one element.

// What NaN becomes before a search: as the reference has it, NaN takes the last code.
QMAPS_INLINE float searchable(float n) { return is_nan(n) ? float_of(kInfinityBits) : n; }

// x under its scale. A scale of 0 is that of zeros.
QMAPS_INLINE float normalized(float x, float scale) {
    return scale == 0.0f ? 0.0f : searchable(x / scale);
}

// The position of x in a log2 range; -1 for zero.
QMAPS_INLINE float log_position(float x, float low, float high) {
    const float width = high - low;
    const float safe = x == 0.0f ? 1.0f : x;
    float position = (log2_of(safe) - low) / width;
    position = width == 0.0f ? 1.0f : position;
    return searchable(x == 0.0f ? -1.0f : position);
}

// The value at a position in a log2 range.
QMAPS_INLINE float log_value(float position, float low, float high) {
    float value = exp2_of(low + position * (high - low));
    value = value > kLargest ? kLargest : value;
    return position < 0.0f ? 0.0f : value;
}

// An end of a log2 range; that of zeros is one whose power is 0.
QMAPS_INLINE float log_end(float x) { return x == 0.0f ? -250.0f : log2_of(x); }

// Whether a value between two neighbours takes the upper one, by its 16 random bits and the bend of
// its map. Of negative values the bits in `mirror` are turned round.
QMAPS_INLINE bool rounds_up(std::uint32_t draw, std::uint32_t mirror, float value, float low,
                            float high, float bend) {
    const float over = value - low, bent = over * bend;
    const float random = uniform_of(value < 0.0f ? draw ^ mirror : draw);
    return random * ((high - low) + bent) < over + bent;
}

// The number of limits below a value, where it is known to be `code` at least and `2^steps - 1`
// more at most. Limits ascend and end with infinity, as many as that reaches.
QMAPS_INLINE int refined(const float* limit, int code, int steps, float value) {
    for (int some = 1 << steps >> 1; some > 0; some >>= 1)
        code += value > limit[code + some - 1] ? some : 0;
    return code;
}
