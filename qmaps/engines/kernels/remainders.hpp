// Float32 numbers as bfloat16 numbers and signed remainders of 8 or 16 bits; see
// qmaps.engines.bfloat16, which defines both functions.

// How many of the 16 lower bits of a float32 number remainders of this type do not hold.
template <class R>
constexpr int kDropped = 16 - 8 * static_cast<int>(sizeof(R));

template <class R>
QMAPS_INLINE float joined(std::uint16_t half, R remainder) {
    const std::uint32_t upper = static_cast<std::uint32_t>(half) << 16;
    const std::uint32_t magnitude = upper & 0x7FFFFFFFu;
    std::int32_t lower = static_cast<std::int32_t>(remainder) * (1 << kDropped<R>);
    // Remainders may be those of earlier values: no NaN appears above infinity or below 0. So no
    // sum reaches the sign.
    lower = magnitude >= kInfinityBits && lower > 0 ? 0 : lower;
    lower = magnitude == 0 && lower < 0 ? 0 : lower;
    return float_of(upper + static_cast<std::uint32_t>(lower));
}

template <class R>
QMAPS_INLINE std::uint16_t split(float value, R& remainder) {
    // Sums may carry into the exponent, but not into the sign: above infinity there is one NaN.
    std::uint32_t bits = is_nan(value) ? 0x7FC00000u : bits_of(value);
    if constexpr (kDropped<R> > 0) {
        const std::uint32_t even = (bits >> kDropped<R>) & 1u;
        bits += ((1u << (kDropped<R> - 1)) - 1u) + even;
    }
    remainder = static_cast<R>(bits >> kDropped<R>);
    return static_cast<std::uint16_t>((bits + 0x8000u) >> 16);
}
