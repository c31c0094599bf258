// Powers that expand a block's range; see qmaps.normalize.range_expansion.

QMAPS_INLINE float magnitude_of(float x) { return float_of(bits_of(x) & 0x7FFFFFFFu); }

// `magnitude` with the sign of x.
QMAPS_INLINE float with_sign(float magnitude, float x) {
    return float_of(bits_of(magnitude) | (bits_of(x) & 0x80000000u));
}

// x under its scale, raised to this power.
QMAPS_INLINE float expanded(float x, float scale, float exponent) {
    const float n = normalized(x, scale);
    const float magnitude = magnitude_of(n);
    const float power = exp2_of(exponent * log2_of(n == 0.0f ? 1.0f : magnitude));
    const float grown = magnitude > kLargest ? n : with_sign(power, n);
    return n == 0.0f ? n : grown;
}

// The value whose power under the scale is `n`.
QMAPS_INLINE float unexpanded(float n, float scale, float exponent) {
    const float root = log2_of(n == 0.0f ? 1.0f : magnitude_of(n)) / exponent;
    const float shrunk = with_sign(exp2_of(root), n);
    return (n == 0.0f ? n : shrunk) * scale;
}

// 16 times the exponent under which a range from `low` to `high` becomes one whose ratio has the
// log2 `wanted` / 16; of a range with NaN, or of zeros, both are 1.
QMAPS_INLINE std::int32_t sixteenths_of(float low, float high, float wanted) {
    const float steps = wanted / (log2_of(high) - log2_of(low));
    const float bounded = steps > 255.0f ? 255.0f : steps < 1.0f ? 1.0f : steps;
    return static_cast<std::int32_t>(is_nan(steps) ? 16.0f : bounded);
}
