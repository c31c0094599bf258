// Runs of bfloat16 numbers with remainders; see qmaps/engines/kernels/remainders.hpp.

#if defined(__AVX512BW__)
// The lower 16 bits, as signed numbers, of 32 elements.
ALWAYS_INLINE inline __m512i lower_bits(const std::int16_t* remainder) {
    return _mm512_loadu_si512(remainder);
}
ALWAYS_INLINE inline __m512i lower_bits(const std::int8_t* remainder) {
    const __m256i some = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(remainder));
    return _mm512_slli_epi16(_mm512_cvtepi8_epi16(some), 8);
}

// Words of two registers in turns: 16 of each make floats.
struct alignas(64) Turns {
    std::uint16_t first[32], second[32];
    constexpr Turns() : first(), second() {
        for (int i = 0; i < 32; ++i) {
            first[i] = static_cast<std::uint16_t>(i / 2 + (i % 2 ? 32 : 0));
            second[i] = static_cast<std::uint16_t>(first[i] + 16);
        }
    }
};
inline constexpr Turns kTurns;

// `joined` of 32 elements at a time; returns how many were done.
template <class R>
inline std::int64_t join_many(const std::uint16_t* half, const R* remainder, std::int64_t count,
                              float* to) {
    const __m512i zeros = _mm512_setzero_si512(), magnitude = _mm512_set1_epi16(0x7FFF);
    const __m512i infinity = _mm512_set1_epi16(0x7F80);
    const __m512i first = _mm512_load_si512(kTurns.first), second = _mm512_load_si512(kTurns.second);
    std::int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        const __m512i upper = _mm512_loadu_si512(half + i);
        const __m512i bits = _mm512_and_si512(upper, magnitude);
        __m512i lower = lower_bits(remainder + i);
        lower = _mm512_mask_min_epi16(lower, _mm512_cmpge_epi16_mask(bits, infinity), lower, zeros);
        lower = _mm512_mask_max_epi16(lower, _mm512_testn_epi16_mask(bits, bits), lower, zeros);
        // What is below 0 takes one from the upper half.
        const __m512i rest = _mm512_add_epi16(upper, _mm512_srai_epi16(lower, 15));
        _mm512_storeu_si512(to + i, _mm512_permutex2var_epi16(lower, first, rest));
        _mm512_storeu_si512(to + i + 16, _mm512_permutex2var_epi16(lower, second, rest));
    }
    return i;
}
#else
template <class R>
inline std::int64_t join_many(const std::uint16_t*, const R*, std::int64_t, float*) { return 0; }
#endif

template <class R>
inline void load_joined(const std::uint16_t* __restrict half, const R* __restrict remainder,
                        std::int64_t count, float* __restrict to) {
    for (std::int64_t i = join_many(half, remainder, count, to); i < count; ++i)
        to[i] = joined(half[i], remainder[i]);
}

template <class R>
inline void store_split(const float* __restrict from, std::int64_t count,
                        std::uint16_t* __restrict half, R* __restrict remainder) {
    for (std::int64_t i = 0; i < count; ++i) half[i] = split(from[i], remainder[i]);
}
