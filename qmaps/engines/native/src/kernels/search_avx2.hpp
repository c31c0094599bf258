// Search and look-up with AVX2, eight elements a register. Tables of up to 16 numbers lie in
// registers; of greater ones entries are loaded one by one, which takes half as long as gathers.

#include "search_one.hpp"

inline constexpr std::int64_t kGroup = 32;  // elements whose codes fill a register

ALWAYS_INLINE inline __m256i bits_of(__m256 value) { return _mm256_castps_si256(value); }
ALWAYS_INLINE inline __m256 floats_of(__m256i bits) { return _mm256_castsi256_ps(bits); }
ALWAYS_INLINE inline __m256i all_of(std::uint32_t bits) {
    return _mm256_set1_epi32(static_cast<int>(bits));
}

// Eight codes of a byte each.
ALWAYS_INLINE inline __m256i eight_codes(const std::uint8_t* codes) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
}

// Bytes of four registers of 32-bit numbers, in order.
ALWAYS_INLINE inline __m256i bytes_of(const __m256i (&number)[4]) {
    const __m256i packed = _mm256_packus_epi16(_mm256_packus_epi32(number[0], number[1]),
                                               _mm256_packus_epi32(number[2], number[3]));
    return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// 16 floats by their index, whose bit 3 is also the highest bit of `upper`.
struct Sixteen {
    __m256 low, high;
    ALWAYS_INLINE explicit Sixteen(const float* values)
        : low(_mm256_loadu_ps(values)), high(_mm256_loadu_ps(values + 8)) {}
    ALWAYS_INLINE __m256 at(__m256i index, __m256i upper) const {
        return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, index),
                                _mm256_permutevar8x32_ps(high, index), floats_of(upper));
    }
};

// Finders: `code(i, value)` gives the codes of eight values from element i of a tile on.

// By a binary search of up to 15 limits.
struct FewLimits {
    __m256 first, second, third, fourth;
    ALWAYS_INLINE explicit FewLimits(const Search& search)
        : first(_mm256_loadu_ps(search.tree[0])), second(_mm256_loadu_ps(search.tree[1])),
          third(_mm256_loadu_ps(search.tree[2])), fourth(_mm256_loadu_ps(search.tree[3])) {}
    ALWAYS_INLINE __m256i code(std::int64_t, __m256 value) const {
        const __m256i path = _mm256_sub_epi32(_mm256_setzero_si256(), above(value, first));
        return deeper(deeper(deeper(path, value, second), value, third), value, fourth);
    }

  private:
    // -1 where it holds.
    ALWAYS_INLINE static __m256i above(__m256 value, __m256 node) {
        return bits_of(_mm256_cmp_ps(value, node, _CMP_GT_OQ));
    }
    ALWAYS_INLINE static __m256i deeper(__m256i path, __m256 value, __m256 nodes) {
        return _mm256_sub_epi32(_mm256_add_epi32(path, path),
                                above(value, _mm256_permutevar8x32_ps(nodes, path)));
    }
};

// See Pieces. Their places are stored first: loads of them are cheaper than taking them out of
// registers.
template <bool kSigned>
struct PieceLimits {
    static constexpr int kLoose = kSigned ? 17 : 16;
    const std::uint32_t* table;
    std::uint32_t* places;
    ALWAYS_INLINE static __m256i key(__m256 value) {
        const __m256i least = all_of(kLeastPiece);
        if constexpr (!kSigned) return _mm256_max_epi32(bits_of(value), least);
        const __m256i bits = bits_of(_mm256_add_ps(value, _mm256_setzero_ps()));  // -0 counts as 0
        const __m256i magnitude = _mm256_and_si256(bits, all_of(0x7FFFFFFFu));
        return _mm256_xor_si256(_mm256_max_epi32(magnitude, least), _mm256_srai_epi32(bits, 31));
    }
    ALWAYS_INLINE void place(std::int64_t i, __m256 value) const {
        const __m256i piece = _mm256_and_si256(_mm256_srli_epi32(key(value), kLoose), all_of(kPieces - 1));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(places + i), piece);
    }
    ALWAYS_INLINE __m256i code(std::int64_t i, __m256 value) const {
        const auto four = [&](const std::uint32_t* at) ALWAYS_INLINE {
            __m128i entry = _mm_cvtsi32_si128(static_cast<int>(table[at[0]]));
            entry = _mm_insert_epi32(entry, static_cast<int>(table[at[1]]), 1);
            entry = _mm_insert_epi32(entry, static_cast<int>(table[at[2]]), 2);
            return _mm_insert_epi32(entry, static_cast<int>(table[at[3]]), 3);
        };
        const __m256i entry = _mm256_set_m128i(four(places + i + 4), four(places + i));
        const __m256i rest = _mm256_and_si256(key(value), all_of((1u << kLoose) - 1u));
        return _mm256_srli_epi32(_mm256_add_epi32(entry, rest), kLoose);
    }
};

// See EvenLimits.
struct EvenBitsLimits {
    __m256i low, high;
    __m128i shift;
    ALWAYS_INLINE explicit EvenBitsLimits(const Search& search)
        : low(_mm256_set1_epi32(search.even.low)), high(_mm256_set1_epi32(search.even.high)),
          shift(_mm_cvtsi32_si128(search.even.shift)) {}
    ALWAYS_INLINE __m256i code(std::int64_t, __m256 value) const {
        const __m256i held = _mm256_min_epi32(_mm256_max_epi32(bits_of(value), low), high);
        return _mm256_srl_epi32(_mm256_sub_epi32(held, low), shift);
    }
};

// Codes found before.
struct FoundCodes {
    const std::uint8_t* codes;
    ALWAYS_INLINE __m256i code(std::int64_t i, __m256) const { return eight_codes(codes + i); }
};

// Random numbers, as uniform_of has them, of draws as draws_of leaves them.
ALWAYS_INLINE inline __m256 uniforms(__m256i draws) {
    const __m256i before = bits_of(_mm256_set1_ps(128.0f));
    return _mm256_sub_ps(floats_of(_mm256_or_si256(draws, before)),
                         _mm256_set1_ps(127.99999237060546875f));
}
struct StoredDraws {
    const std::uint16_t* draws;
    ALWAYS_INLINE __m256 uniform(std::int64_t i, __m256) const {
        const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(draws + i));
        return uniforms(_mm256_cvtepu16_epi32(some));
    }
};

// Draws that are spread over steps, from an element on; those of negative values are turned round.
struct SpreadDraws {
    __m256i words;
    ALWAYS_INLINE explicit SpreadDraws(std::uint32_t word) {
        alignas(32) static constexpr std::uint32_t kAhead[8] = {
            0, kPerElement, 2 * kPerElement, 3 * kPerElement,
            4 * kPerElement, 5 * kPerElement, 6 * kPerElement, 7 * kPerElement};
        words = _mm256_add_epi32(all_of(word),
                                 _mm256_load_si256(reinterpret_cast<const __m256i*>(kAhead)));
    }
    ALWAYS_INLINE __m256 uniform(std::int64_t i, __m256 value) const {
        const __m256i plain = _mm256_add_epi32(words, all_of(static_cast<std::uint32_t>(i) * kPerElement));
        const __m256i negative = bits_of(_mm256_cmp_ps(value, _mm256_setzero_ps(), _CMP_LT_OQ));
        return uniforms(_mm256_srli_epi32(_mm256_xor_si256(plain, negative), 16));
    }
};

// -1 where a value is rounded up; see rounds_up.
ALWAYS_INLINE inline __m256i up_of(__m256 random, __m256 value, __m256 low, __m256 high, __m256 bend) {
    const __m256 over = _mm256_sub_ps(value, low), bent = _mm256_mul_ps(over, bend);
    const __m256 chance = _mm256_mul_ps(random, _mm256_add_ps(_mm256_sub_ps(high, low), bent));
    return bits_of(_mm256_cmp_ps(chance, _mm256_add_ps(over, bent), _CMP_LT_OQ));
}

// The values of up to 16 codes and of those after them; and of more.
struct FewValues {
    Sixteen here, after;
    ALWAYS_INLINE FewValues(const Lookup& lookup, const std::uint8_t*)
        : here(lookup.value), after(lookup.value + 1) {}
    ALWAYS_INLINE void neighbours(std::int64_t, __m256i code, __m256& low, __m256& high) const {
        const __m256i upper = _mm256_slli_epi32(code, 28);
        low = here.at(code, upper);
        high = after.at(code, upper);
    }
};
struct ManyValues {
    const float* value;
    const std::uint8_t* codes;
    ALWAYS_INLINE ManyValues(const Lookup& lookup, const std::uint8_t* found)
        : value(lookup.value), codes(found) {}
    ALWAYS_INLINE void neighbours(std::int64_t i, __m256i, __m256& low, __m256& high) const {
        const auto two = [&](const std::uint8_t* code) ALWAYS_INLINE {
            const auto pair = [&](int at) ALWAYS_INLINE {
                return reinterpret_cast<const __m64*>(value + code[at]);
            };
            return _mm_loadh_pi(_mm_loadl_pi(_mm_setzero_ps(), pair(0)), pair(1));
        };
        const __m256 a = _mm256_set_m128(two(codes + i + 4), two(codes + i));
        const __m256 b = _mm256_set_m128(two(codes + i + 6), two(codes + i + 2));
        low = _mm256_shuffle_ps(a, b, _MM_SHUFFLE(2, 0, 2, 0));
        high = _mm256_shuffle_ps(a, b, _MM_SHUFFLE(3, 1, 3, 1));
    }
};

// A finder's codes rounded up by chance.
template <class Find, class Values, class Draws>
struct Raised {
    Find lower;
    Values values;
    Draws draws;
    __m256i last;
    __m256 bend;
    ALWAYS_INLINE Raised(const Codebook& codebook, const Find& find, const Draws& drawn,
                         const std::uint8_t* codes)
        : lower(find), values(codebook.values, codes), draws(drawn),
          last(_mm256_set1_epi32(codebook.size - 1)), bend(_mm256_set1_ps(codebook.bend)) {}
    ALWAYS_INLINE __m256i code(std::int64_t i, __m256 value) const {
        const __m256i code = lower.code(i, value);
        __m256 low, high;
        values.neighbours(i, code, low, high);
        const __m256i up = up_of(draws.uniform(i, value), value, low, high, bend);
        return _mm256_min_epi32(_mm256_sub_epi32(code, up), last);
    }
};

// The same where the bits of values are evenly spaced: those of the lower neighbour are the first of
// a value's own.
template <class Draws>
struct RaisedBits {
    Draws draws;
    __m256 lowest, highest, bend;
    __m256i first, step, kept;
    __m128i shift;
    ALWAYS_INLINE RaisedBits(const Codebook& codebook, const Draws& drawn)
        : draws(drawn), lowest(_mm256_set1_ps(codebook.values.value[0])),
          highest(_mm256_set1_ps(codebook.values.value[codebook.size - 1])),
          bend(_mm256_set1_ps(codebook.bend)), first(all_of(codebook.values.first)),
          step(all_of(1u << codebook.values.shift)), kept(all_of(0u - (1u << codebook.values.shift))),
          shift(_mm_cvtsi32_si128(codebook.values.shift)) {}
    ALWAYS_INLINE __m256i code(std::int64_t i, __m256 value) const {
        const __m256 held = _mm256_max_ps(_mm256_min_ps(value, highest), lowest);
        const __m256i bits = _mm256_and_si256(bits_of(held), kept);
        const __m256i up = up_of(draws.uniform(i, held), held, floats_of(bits),
                                 floats_of(_mm256_add_epi32(bits, step)), bend);
        return _mm256_sub_epi32(_mm256_srl_epi32(_mm256_sub_epi32(bits, first), shift), up);
    }
};

// Eight values: as they are, or divided by a scale.
template <bool kDivides>
ALWAYS_INLINE inline __m256 load_eight(const float* x, __m256 divisor) {
    const __m256 value = _mm256_loadu_ps(x);
    return kDivides ? _mm256_div_ps(value, divisor) : value;
}

// Codes of `count` values; what does not fill a group goes by way of memory that has room.
template <bool kDivides, class Find>
inline void find_codes(const Find& find, const float* x, float scale, std::uint8_t* codes,
                       std::int64_t count) {
    const __m256 divisor = _mm256_set1_ps(scale);
    const auto group = [&](std::int64_t i, const float* from) ALWAYS_INLINE {
        __m256i code[4];
        for (int q = 0; q < 4; ++q)
            code[q] = find.code(i + 8 * q, load_eight<kDivides>(from + 8 * q, divisor));
        return bytes_of(code);
    };
    std::int64_t i = 0;
    for (; i + kGroup <= count; i += kGroup)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i), group(i, x + i));
    if (i == count) return;
    const auto rest = static_cast<std::size_t>(count - i);
    float last[kGroup] = {};
    std::uint8_t last_codes[kGroup];
    __builtin_memcpy(last, x + i, rest * sizeof(float));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(last_codes), group(i, last));
    __builtin_memcpy(codes + i, last_codes, rest);
}

// `n` takes the quotients.
template <bool kDivides, bool kSigned>
inline void find_pieces(const Search& search, const float* x, float* n, float scale,
                        std::uint8_t* codes, std::int64_t count, Scratch& scratch) {
    const PieceLimits<kSigned> find{search.pieces.entry.get(),
                                    reinterpret_cast<std::uint32_t*>(scratch.low)};
    const __m256 divisor = _mm256_set1_ps(scale);
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const __m256 value = load_eight<kDivides>(x + i, divisor);
        if constexpr (kDivides) _mm256_storeu_ps(n + i, value);
        find.place(i, value);
    }
    if (i < count) {
        float last[8] = {};
        const auto rest = static_cast<std::size_t>(count - i) * sizeof(float);
        __builtin_memcpy(last, x + i, rest);
        const __m256 value = load_eight<kDivides>(last, divisor);
        _mm256_storeu_ps(last, value);
        if constexpr (kDivides) __builtin_memcpy(n + i, last, rest);
        find.place(i, value);
        i += 8;
    }
    for (; i % kGroup; i += 8) find.place(i, _mm256_setzero_ps());
    find_codes<false>(find, kDivides ? n : x, scale, codes, count);
}

// Codes of at most a tile.
template <bool kDivides>
inline void search_stretch(const Search& search, const float* x, float* n, float scale,
                           std::uint8_t* codes, std::int64_t count, Scratch& scratch) {
    if (search.even.shift) {
        find_codes<kDivides>(EvenBitsLimits(search), x, scale, codes, count);
    } else if (search.count < 16) {
        find_codes<kDivides>(FewLimits(search), x, scale, codes, count);
    } else if (search.pieces.entry) {
        const auto chosen = search.pieces.loose == 17 ? find_pieces<kDivides, true>
                                                      : find_pieces<kDivides, false>;
        chosen(search, x, n, scale, codes, count, scratch);
    } else {
        if constexpr (kDivides)
            for (std::int64_t i = 0; i < count; ++i) n[i] = x[i] / scale;
        const float* value = kDivides ? n : x;
        for (std::int64_t i = 0; i < count; ++i) codes[i] = search_one(search, value[i]);
    }
}

// The same, rounded stochastically.
template <bool kDivides, class Draws>
inline void round_stretch(const Codebook& codebook, const float* x, float* n, float scale,
                          const Draws& draws, std::uint8_t* codes, std::int64_t count,
                          Scratch& scratch) {
    if (codebook.values.shift) {
        find_codes<kDivides>(RaisedBits<Draws>(codebook, draws), x, scale, codes, count);
    } else if (codebook.size <= 16) {
        const FewLimits lower(codebook.stochastic);
        find_codes<kDivides>(Raised<FewLimits, FewValues, Draws>(codebook, lower, draws, nullptr), x,
                             scale, codes, count);
    } else {
        std::uint8_t* lower = scratch.bounds;
        search_stretch<kDivides>(codebook.stochastic, x, n, scale, lower, count, scratch);
        find_codes<false>(
            Raised<FoundCodes, ManyValues, Draws>(codebook, FoundCodes{lower}, draws, lower),
            kDivides ? n : x, scale, codes, count);
    }
}

// Call with(draws) for elements of a tile, of which `i` come before them; `drawn` is kept meanwhile.
template <class With>
ALWAYS_INLINE inline void with_draws(const NoiseKey& noise, std::int64_t tile, std::int64_t i,
                                     std::int64_t count, const std::uint16_t*& drawn,
                                     Scratch& scratch, const With& with) {
    if (noise.key1 & kSpread) return with(SpreadDraws(spread_word_at(noise, tile + i)));
    if (i == 0) drawn = draws_of(noise, tile, count, scratch);
    with(StoredDraws{drawn + i});
}

inline void search_codes(const Search& search, const float* n, std::uint8_t* codes,
                         std::int64_t count, Scratch& scratch) {
    for (std::int64_t i = 0; i < count; i += kTile)
        search_stretch<false>(search, n + i, nullptr, 1.0f, codes + i,
                              count - i < kTile ? count - i : kTile, scratch);
}

// Codes that are rounded stochastically; the first value is element `first` of the tensor.
inline void round_codes(const Codec& codec, const float* n, std::int64_t first,
                        std::uint8_t* codes, std::int64_t count, Scratch& scratch) {
    const std::uint16_t* drawn = nullptr;
    for (std::int64_t i = 0; i < count; i += kTile) {
        const std::int64_t some = count - i < kTile ? count - i : kTile;
        with_draws(codec.noise, first + i, 0, some, drawn, scratch, [&](const auto& draws) {
            round_stretch<false>(*codec.codebook, n + i, nullptr, 1.0f, draws, codes + i, some, scratch);
        });
    }
}

// Codes of x / divisor, block by block, where that can be done in one go. The first value begins
// a block.
inline bool encode_divided(const Codec& codec, const float* x, const float* divisor,
                           std::int64_t block, std::int64_t first, std::uint8_t* codes,
                           std::int64_t count, Scratch& scratch) {
    if (block < kGroup) return false;
    const std::uint16_t* drawn = nullptr;
    for (std::int64_t tile = 0; tile < count; tile += kTile) {
        const std::int64_t in_tile = count - tile < kTile ? count - tile : kTile;
        for (std::int64_t i = 0; i < in_tile;) {
            const std::int64_t at = tile + i, rest = block - at % block;
            const std::int64_t some = in_tile - i < rest ? in_tile - i : rest;
            const float scale = divisor[at / block];
            if (codec.stochastic) {
                with_draws(codec.noise, first + tile, i, in_tile, drawn, scratch,
                           [&](const auto& draws) {
                    round_stretch<true>(*codec.codebook, x + at, scratch.n + at, scale, draws,
                                        codes + at, some, scratch);
                });
            } else {
                search_stretch<true>(codec.codebook->nearest, x + at, scratch.n + at, scale,
                                     codes + at, some, scratch);
            }
            i += some;
        }
    }
    return true;
}

// Whether codes of 4 bits are looked up as they are stored; else a byte each.
inline constexpr bool kReadsHalves = true;

// Values of codes times a scale.
inline void look_up_scaled(const Lookup& lookup, const std::uint8_t* codes, bool halves, float scale,
                           float* out, std::int64_t count) {
    const __m256 scales = _mm256_set1_ps(scale);
    const float* value = lookup.value;
    std::int64_t i = 0;
    if (halves) {
        const Sixteen values(value);
        const __m256i upwards = _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0);
        for (; i + 8 <= count; i += 8) {
            std::int32_t eight;
            __builtin_memcpy(&eight, codes + i / 2, 4);
            const __m256i upper = _mm256_sllv_epi32(_mm256_set1_epi32(eight), upwards);
            const __m256 found = values.at(_mm256_srli_epi32(upper, 28), upper);
            _mm256_storeu_ps(out + i, _mm256_mul_ps(found, scales));
        }
        for (; i < count; ++i) out[i] = value[codes[i / 2] >> (i % 2 * 4) & 15] * scale;
        return;
    }
    if (lookup.shift) {
        const __m128i shift = _mm_cvtsi32_si128(lookup.shift);
        const __m256i first = all_of(lookup.first);
        for (; i + 8 <= count; i += 8) {
            const __m256i bits = _mm256_add_epi32(_mm256_sll_epi32(eight_codes(codes + i), shift), first);
            _mm256_storeu_ps(out + i, _mm256_mul_ps(floats_of(bits), scales));
        }
    }
    if (lookup.codes <= 32) {
        const Sixteen low(value), high(value + 16);
        for (; i + 8 <= count; i += 8) {
            const __m256i code = eight_codes(codes + i), upper = _mm256_slli_epi32(code, 28);
            const __m256 above = floats_of(_mm256_slli_epi32(code, 27));
            const __m256 found = _mm256_blendv_ps(low.at(code, upper), high.at(code, upper), above);
            _mm256_storeu_ps(out + i, _mm256_mul_ps(found, scales));
        }
    }
    for (; i + 8 <= count; i += 8) {
        const auto four = [&](const std::uint8_t* code) ALWAYS_INLINE {
            __m128 found = _mm_load_ss(value + code[0]);
            found = _mm_insert_ps(found, _mm_load_ss(value + code[1]), 0x10);
            found = _mm_insert_ps(found, _mm_load_ss(value + code[2]), 0x20);
            return _mm_insert_ps(found, _mm_load_ss(value + code[3]), 0x30);
        };
        const __m256 found = _mm256_set_m128(four(codes + i + 4), four(codes + i));
        _mm256_storeu_ps(out + i, _mm256_mul_ps(found, scales));
    }
    for (; i < count; ++i) out[i] = value[codes[i]] * scale;
}

#include "lanes.hpp"
