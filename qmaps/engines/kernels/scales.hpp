// Which scale belongs to an element, and scales in 8 bits.

// The smaller of two scales, NaN where one of them is.
QMAPS_INLINE float smaller_scale(float one, float other) {
    const float smaller = other < one ? other : one;
    return is_nan(other) ? other : smaller;
}

// Scale j, 0 to 254, of the log2 grid of a tensor's scales (qmaps.normalize.eight_bit): `low` and
// `high` are its ends, finite and above 0. The grid's codes, from 1, stand for the largest of
// these up to their place.
constexpr int kGridSteps = 254;
QMAPS_INLINE float grid_scale(int j, float low, float high, float low_log2, float width) {
    const float position = static_cast<float>(j) / 254.0f;
    float scale = exp2_of(low_log2 + position * width);
    scale = scale < low ? low : scale;
    scale = scale > high ? high : scale;
    scale = j == 0 ? low : scale;
    return j == kGridSteps ? high : scale;
}
