// Values of codes, from registers.

// 64 codes of a byte each.
struct Bytes {
    static constexpr int kShuffles = 1 + Planes::kShuffles;
    Planes values;
    const std::uint8_t* codes;
    ALWAYS_INLINE Bytes(const Lookup& lookup, const std::uint8_t* from)
        : values(lookup.plane), codes(from) {}
    template <bool whole>
    ALWAYS_INLINE void floats(std::int64_t i, std::int64_t rest, __m512 (&out)[4]) const {
        const __m512i strided = _mm512_load_si512(kOrders.strided);
        const __m512i some =
            whole ? _mm512_loadu_si512(codes + i)
                  : _mm512_maskz_loadu_epi8((std::uint64_t{1} << rest) - 1u, codes + i);
        values.floats(_mm512_permutexvar_epi8(strided, some), out);
    }
    void ask_ahead(std::int64_t i) const { __builtin_prefetch(codes + i + kTile, 0, 2); }
};

// The same where the bits of values are evenly spaced.
struct EvenBits {
    std::uint32_t first;
    __m128i shift;
    const std::uint8_t* codes;
    ALWAYS_INLINE EvenBits(const Lookup& lookup, const std::uint8_t* from)
        : first(lookup.first), shift(_mm_cvtsi32_si128(lookup.shift)), codes(from) {}
    template <bool whole>
    ALWAYS_INLINE void floats(std::int64_t i, std::int64_t rest, __m512 (&out)[4]) const {
        const __m512i base = _mm512_set1_epi32(static_cast<int>(first));
        for (int q = 0; q < 4; ++q) {
            const std::int64_t left = rest - 16 * q;
            const auto* from = reinterpret_cast<const __m128i*>(codes + i + 16 * q);
            const bool all = whole || left >= 16;
            const auto some = static_cast<__mmask16>(all || left <= 0 ? 0 : (1u << left) - 1u);
            const __m128i code = all ? _mm_loadu_si128(from) : _mm_maskz_loadu_epi8(some, from);
            const __m512i above = _mm512_sll_epi32(_mm512_cvtepu8_epi32(code), shift);
            out[q] = _mm512_castsi512_ps(_mm512_add_epi32(above, base));
        }
    }
    void ask_ahead(std::int64_t i) const { __builtin_prefetch(codes + i + kTile, 0, 2); }
};

// 64 codes of half a byte each.
struct Halves {
    static constexpr int kShuffles = 4 * 2;
    __m512 values;
    const std::uint8_t* packed;
    ALWAYS_INLINE Halves(const Lookup& lookup, const std::uint8_t* from)
        : values(_mm512_load_ps(lookup.value)), packed(from) {}
    template <bool whole>
    ALWAYS_INLINE void floats(std::int64_t i, std::int64_t rest, __m512 (&out)[4]) const {
        const __m256i some =
            whole ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(packed + i / 2))
                  : _mm256_maskz_loadu_epi8(
                        static_cast<__mmask32>((std::uint64_t{1} << (rest + 1) / 2) - 1u),
                        packed + i / 2);
        const __m512i pairs = _mm512_castsi256_si512(some);
        const __m512i shift = _mm512_set1_epi64(0x0000000400000000ll);
        for (int q = 0; q < 4; ++q) {
            const __m512i byte = _mm512_permutexvar_epi8(_mm512_load_si512(kOrders.halves[q]), pairs);
            // The permute looks at an index's lower bits alone.
            out[q] = _mm512_permutexvar_ps(_mm512_srlv_epi32(byte, shift), values);
        }
    }
    void ask_ahead(std::int64_t i) const { __builtin_prefetch(packed + i / 2 + kTile / 2, 0, 2); }
};

// The scales of 16 elements each, from element i on, of which there are `rest`.
struct Unscaled {
    template <bool whole>
    ALWAYS_INLINE static __m512 of(__m512 value, std::int64_t, std::int64_t) { return value; }
};

// A scale for each block of 2^shift elements, at least 16; the first lies `at` into the tensor.
template <bool coded>
struct BlockScales {
    const PartView& part;
    std::int64_t at;
    int shift;
    float scale(std::int64_t i) const {
        const std::int64_t block = (at + i) >> shift;
        return coded ? part.grid[part.codes[block]] : part.values[block];
    }
    template <bool whole>
    ALWAYS_INLINE __m512 of(__m512 value, std::int64_t i, std::int64_t rest) const {
        if (!whole && rest <= 0) return value;
        return _mm512_mul_ps(value, _mm512_set1_ps(scale(i)));
    }
};

// As in_scales has them.
struct LeastScales {
    __m512 all;
    const float* scales;
    template <bool whole>
    ALWAYS_INLINE __m512 of(__m512 value, std::int64_t i, std::int64_t rest) const {
        const __m512 scale = scales ? _mm512_min_ps(all, load_some<whole>(scales + i, rest)) : all;
        return _mm512_mul_ps(value, scale);
    }
};

// `streams`: past the caches, if `out` is a line.
template <class Codes, class Scales>
inline void look_up_from(const Lookup& lookup, const std::uint8_t* codes, const Scales& scales,
                         float* out, std::int64_t count, bool streams) {
    const Codes source(lookup, codes);
    const bool past = streams && is_line(out);
    in_groups(count, [&]<bool whole>(std::int64_t i) ALWAYS_INLINE {
        source.ask_ahead(i);
        __m512 value[4];
        source.template floats<whole>(i, count - i, value);
        for (int q = 0; q < 4; ++q) {
            const std::int64_t j = i + 16 * q;
            const __m512 scaled = scales.template of<whole>(value[q], j, count - j);
            if (whole && past) {
                _mm512_stream_ps(out + j, scaled);
            } else {
                store_some<whole>(out + j, count - j, scaled);
            }
        }
    });
}

template <class Scales>
inline void look_up_scaled(const Lookup& lookup, const std::uint8_t* codes, bool halves,
                           const Scales& scales, float* out, std::int64_t count,
                           bool streams = false) {
    if (halves) {
        look_up_from<Halves>(lookup, codes, scales, out, count, streams);
    } else if (lookup.shift) {
        look_up_from<EvenBits>(lookup, codes, scales, out, count, streams);
    } else {
        look_up_from<Bytes>(lookup, codes, scales, out, count, streams);
    }
}

// Whether codes of 4 bits are looked up as they are stored; else a byte each.
inline constexpr bool kReadsHalves = true;

inline void look_up(const Lookup& lookup, const std::uint8_t* codes, bool halves, float* out,
                    std::int64_t count) {
    look_up_scaled(lookup, codes, halves, Unscaled{}, out, count);
}

// Whether 16 elements, from `at` on, always lie in one block, and shifts tell which.
inline bool in_whole_lanes(std::int64_t block, std::int64_t at) {
    return block >= 16 && (block & (block - 1)) == 0 && at % 16 == 0;
}

// Values times the scale of their block, where that can be done in one go; at: of the first.
inline bool look_up_blocks(const Lookup& lookup, const std::uint8_t* codes, bool halves,
                           const PartView& part, std::int64_t at, float* out, std::int64_t count,
                           bool streams) {
    if (!in_whole_lanes(part.divisor, at)) return false;
    const int shift = __builtin_ctzll(static_cast<unsigned long long>(part.divisor));
    if (part.codes) {
        look_up_scaled(lookup, codes, halves, BlockScales<true>{part, at, shift}, out, count,
                       streams);
    } else {
        look_up_scaled(lookup, codes, halves, BlockScales<false>{part, at, shift}, out, count,
                       streams);
    }
    return true;
}

// Values times the least of their scales, where that can be done in one go; at: of the first.
inline bool look_up_least(const Lookup& lookup, const std::uint8_t* codes, bool halves,
                          const ScaleView& view, std::int64_t at, float* out, std::int64_t count,
                          bool streams) {
    // Tables are loaded anew for every stretch.
    for (int p = 0; p < view.parts; ++p)
        if ((goes_on(view.part[p]) ? view.part[p].count : view.part[p].divisor) < 64) return false;
    in_scales(view, at, count,
              [&](std::int64_t i, std::int64_t some, float all, const float* scales) ALWAYS_INLINE {
        if (halves && i % 2 != 0) {  // the stretch before ends in the middle of a byte
            out[i] = lookup.value[codes[i / 2] >> 4] * (scales ? smaller_of(all, *scales) : all);
            ++i, --some;
            if (scales) ++scales;
        }
        look_up_scaled(lookup, codes + (halves ? i / 2 : i), halves,
                       LeastScales{_mm512_set1_ps(all), scales}, out + i, some, streams);
    });
    return true;
}

inline int decode_shuffles(const Codebook& codebook) {
    if (codebook.wide) return 0;
    if (codebook.bits == 4) return Halves::kShuffles;
    return codebook.values.shift ? 0 : Bytes::kShuffles;
}
