// Subtractive dither; see qmaps.engines.dither.

// What encoding adds to a normalized value and decoding takes away, by 16 random bits.
QMAPS_INLINE float offset_of(std::uint32_t draw, float gap) {
    return (uniform_of(draw) - 0.5f) * gap;
}

// The normalized value of a code that was dithered; `positive`: at least 0.
QMAPS_INLINE float undithered(float value, std::uint32_t draw, float gap, bool positive) {
    const float found = value - offset_of(draw, gap);
    return positive && found < 0.0f ? 0.0f : found;
}
