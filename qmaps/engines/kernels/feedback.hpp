// Error feedback; see qmaps.algebra.feedback.

// A new value with what the last encoding lost added; finite where the value is.
QMAPS_INLINE float carried(float x, float residual) {
    const float y = x + residual;
    const float bounded = y > kLargest ? kLargest : y < -kLargest ? -kLargest : y;
    return (bits_of(x) & 0x7FFFFFFFu) < kInfinityBits ? bounded : y;
}

// What an encoding of y loses that decodes to `decoded`. The others are what the lowest code, the
// one after it and the highest decode to.
QMAPS_INLINE float residual_of(float y, float decoded, float lowest, float second, float highest,
                               bool is_signed) {
    const float low = float_of(bits_of(lowest) & 0x7FFFFFFFu);
    const float high = float_of(bits_of(highest) & 0x7FFFFFFFu);
    const float reach = low > high ? low : high;
    const float least = is_signed ? -reach : (lowest - second) * 0.5f;
    float found = y - decoded;
    found = found < least ? least : found;
    found = found > reach ? reach : found;
    const bool unknown = is_nan(low) || is_nan(high) || is_nan(least);
    return unknown ? float_of(0x7FC00000u) : found;
}
