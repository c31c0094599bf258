// Float32 numbers as bfloat16 numbers and signed remainders of 8 or 16 bits; see
// qmaps.engines.remainders, which defines both functions.

// How many of the 16 lower bits of a float32 number remainders of this type do not hold.
template <class R>
constexpr int kDropped = 16 - 8 * static_cast<int>(sizeof(R));

template <class R>
QMAPS_INLINE float joined(std::uint16_t half, R remainder) {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
    const std::int32_t upper = static_cast<std::int32_t>(half & 0x7FFFu) << 16;
    std::int32_t lower = static_cast<std::int32_t>(remainder) * (1 << kDropped<R>);
    // Remainders may be those of earlier values: no NaN appears above infinity or below 0.
    lower = upper >= static_cast<std::int32_t>(kInfinityBits) && lower > 0 ? 0 : lower;
    lower = upper == 0 && lower < 0 ? 0 : lower;
    return float_of(sign | static_cast<std::uint32_t>(upper + lower));
}

template <class R>
QMAPS_INLINE std::uint16_t split(float value, R& remainder) {
    const std::uint32_t bits = is_nan(value) ? 0x7FC00000u : bits_of(value);
    std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    if constexpr (kDropped<R> > 0) {
        const std::uint32_t even = (magnitude >> kDropped<R>) & 1u;
        magnitude = (magnitude + ((1u << (kDropped<R> - 1)) - 1u) + even) >> kDropped<R>;
    }
    constexpr int kWidth = 16 - kDropped<R>;
    const std::uint32_t upper = (magnitude + (1u << (kWidth - 1))) >> kWidth;
    remainder = static_cast<R>(magnitude - (upper << kWidth));
    return static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | upper);
}
