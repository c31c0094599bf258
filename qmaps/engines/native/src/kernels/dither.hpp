// Subtractive dither of stretches of elements; see qmaps.engines.dither.

// Call each(i, draws, some) for tiles of [0, count), with the random bits of elements `at + i` on.
template <class Each>
inline void in_draws(const NoiseKey& key, std::int64_t at, std::int64_t count, Scratch& scratch,
                     const Each& each) {
    for (std::int64_t i = 0; i < count; i += kTile) {
        const std::int64_t some = count - i < kTile ? count - i : kTile;
        each(i, draws_of(key, at + i, some, scratch), some);
    }
}

// Add the offsets of the next codes to normalized values.
inline void add_offsets(const Codec& codec, std::int64_t at, std::int64_t count, float* n,
                        Scratch& scratch) {
    const float gap = codec.dither.gap;
    in_draws(codec.noise, at, count, scratch,
             [&](std::int64_t i, const std::uint16_t* draws, std::int64_t some) ALWAYS_INLINE {
        float* __restrict to = n + i;
        for (std::int64_t j = 0; j < some; ++j) to[j] = to[j] + offset_of(draws[j], gap);
    });
}

// Take the offsets of the stored codes away from their values.
inline void take_offsets(const Dither& dither, std::int64_t at, std::int64_t count, float* values,
                         Scratch& scratch) {
    const float gap = dither.gap;
    const bool positive = dither.positive;
    in_draws(dither.last, at, count, scratch,
             [&](std::int64_t i, const std::uint16_t* draws, std::int64_t some) ALWAYS_INLINE {
        float* __restrict to = values + i;
        for (std::int64_t j = 0; j < some; ++j)
            to[j] = undithered(to[j], draws[j], gap, positive);
    });
}

#if defined(__AVX512F__)

// Values yet to be divided by the scale of their block, with their offsets, within the ends.
struct DitheredBlocks {
    InBlocks values;
    const std::uint16_t* draws;
    float gap, low, high;
    float* kept;
    template <bool whole>
    ALWAYS_INLINE __m512 load(std::int64_t i, std::int64_t count) const {
        if (!whole && i >= count) return _mm512_setzero_ps();
        // uniform_of as in round_up; the scratch has room for whole groups of draws
        const __m512i draw = _mm512_cvtepu16_epi32(
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(draws + i)));
        const __m512i before = _mm512_castps_si512(_mm512_set1_ps(128.0f));
        const __m512 random = _mm512_sub_ps(_mm512_castsi512_ps(_mm512_or_si512(draw, before)),
                                            _mm512_set1_ps(127.99999237060546875f));
        const __m512 offset =
            _mm512_mul_ps(_mm512_sub_ps(random, _mm512_set1_ps(0.5f)), _mm512_set1_ps(gap));
        const __m512 n = _mm512_add_ps(values.template load<whole>(i, count), offset);
        const __m512 inside =
            _mm512_min_ps(_mm512_max_ps(n, _mm512_set1_ps(low)), _mm512_set1_ps(high));
        _mm512_storeu_ps(kept + i, inside);
        return inside;
    }
};

// As encode_divided, with the offsets of dither.
inline bool encode_dithered(const Codec& codec, const float* x, const float* divisor,
                            std::int64_t block, std::int64_t first, std::uint8_t* codes,
                            std::int64_t count, Scratch& scratch) {
    if (!in_whole_lanes(block, 0)) return false;
    const int shift = __builtin_ctzll(static_cast<unsigned long long>(block));
    const Codebook& codebook = *codec.codebook;
    const float low = codebook.values.value[0], high = codebook.values.value[codebook.size - 1];
    const __m512i natural = _mm512_load_si512(kOrders.natural);
    in_draws(codec.noise, first, count, scratch,
             [&](std::int64_t at, const std::uint16_t* draws, std::int64_t some) ALWAYS_INLINE {
        const InBlocks values{x, divisor, shift, scratch.n, at};
        const DitheredBlocks tile{values, draws, codec.dither.gap, low, high, scratch.n};
        search_tile(codebook.nearest, tile, some, scratch,
                    [&]<bool whole>(std::int64_t i, __m512i code) ALWAYS_INLINE {
            const __m512i plain = _mm512_permutexvar_epi8(natural, code);
            store_codes<whole>(codes + at + i, some - i, plain);
        });
    });
    return true;
}

#else

inline bool encode_dithered(const Codec&, const float*, const float*, std::int64_t, std::int64_t,
                            std::uint8_t*, std::int64_t, Scratch&) {
    return false;
}

#endif
