// Search in registers, in two stages over a tile: a lower bound from the values' upper halves,
// then full comparisons with the limits there. A stage by itself is a short chain of operations,
// of which a core has many under way at once, and needs half of the tables.
#include "tables_avx512.hpp"

#include "lookup_avx512.hpp"

// Where searches take their values from: `load` gives 16 of them, as far as there are so many
// before `count`, and leaves them at `values` for the second stage.
struct Normalized {
    const float* values;
    template <bool whole>
    ALWAYS_INLINE __m512 load(std::int64_t i, std::int64_t count) const {
        return load_some<whole>(values + i, count - i);
    }
    Normalized from(std::int64_t at) const { return {values + at}; }
};

// Values yet to be divided by the scale of their block of 2^shift elements, at least 16.
struct InBlocks {
    const float* x;
    const float* divisor;
    int shift;
    float* values;
    std::int64_t first;
    template <bool whole>
    ALWAYS_INLINE __m512 load(std::int64_t i, std::int64_t count) const {
        if (!whole && i >= count) return _mm512_setzero_ps();
        const __m512 scale = _mm512_set1_ps(divisor[(first + i) >> shift]);
        const __m512 value = _mm512_div_ps(load_some<whole>(x + first + i, count - i), scale);
        _mm512_storeu_ps(values + i, value);  // the scratch has room for whole groups
        return value;
    }
    InBlocks from(std::int64_t at) const { return {x, divisor, shift, values, at}; }
};

// Upper halves of 64 values, in the order that packing them into bytes makes strided.
template <bool whole, class Source>
ALWAYS_INLINE inline void upper_halves(const Source& source, std::int64_t i, std::int64_t count,
                                       __m512i (&raw)[2]) {
    const __m512i upper = _mm512_load_si512(kOrders.upper);
    for (int h = 0; h < 2; ++h) {
        const std::int64_t at = i + 32 * h;
        const __m512 a = source.template load<whole>(at, count);
        const __m512 b = source.template load<whole>(at + 16, count);
        raw[h] =
            _mm512_permutex2var_epi16(_mm512_castps_si512(a), upper, _mm512_castps_si512(b));
    }
}

// Call group<whole>(i, raw) for every 64 values. Divisions are started a group ahead.
template <class Source, class Group>
ALWAYS_INLINE inline void in_halves(const Source& source, std::int64_t count, const Group& group) {
    __m512i next[2];
    if (count >= 64) upper_halves<true>(source, 0, count, next);
    std::int64_t i = 0;
    for (; i + 128 <= count; i += 64) {
        const __m512i raw[2] = {next[0], next[1]};
        upper_halves<true>(source, i + 64, count, next);
        group.template operator()<true>(i, raw);
    }
    if (i + 64 <= count) {
        group.template operator()<true>(i, next);
        i += 64;
    }
    if (i == count) return;
    upper_halves<false>(source, i, count, next);
    group.template operator()<false>(i, next);
}

// First stage: lower bounds in strided order from the search's buckets. `kFlat`: in each bucket
// one for all its cells.
template <Buckets::Kind kKind, bool kFlat, class Source>
inline void bound_by_buckets(const Search& search, const Source& source, std::uint8_t* bounds,
                             std::int64_t count, Ahead& prefetches) {
    Ahead ahead = prefetches;
    const Buckets& buckets = search.buckets;
    const Table base(buckets.base), rises_low(buckets.rises_low), rises_high(buckets.rises_high);
    const __m512i odd_bytes = _mm512_load_si512(kOrders.odd_bytes);
    const __m512i up_to_cell = _mm512_load_si512(kOrders.up_to);
    // 2^-15 or 2^-31
    const __m512i least = _mm512_set1_epi16(kKind == Buckets::Kind::kSplit ? 112 << 7 : 96 << 7);
    const __m512i sign_bit = _mm512_set1_epi16(static_cast<short>(0x8000));
    const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
    const __m512i mirror = _mm512_set1_epi8(static_cast<char>(buckets.mirror));
    in_halves(source, count, [&]<bool whole>(std::int64_t i, const __m512i (&raw)[2]) ALWAYS_INLINE {
        ask(ahead, ahead.unit);
        __m512i key[2], place[2];
        for (int h = 0; h < 2; ++h) {
            // A negative value counts as tiny where no limit is negative.
            const __m512i positive = kKind == Buckets::Kind::kUnsigned
                                         ? raw[h]
                                         : _mm512_and_si512(raw[h], magnitude);
            key[h] = _mm512_max_epi16(positive, least);
            // Bucket and cell are the key's bits 11 to 4, and 3 to 0.
            place[h] = _mm512_slli_epi16(key[h], 4);
            if constexpr (kKind == Buckets::Kind::kSplit) {
                // The sign takes bit 11, and turns the cells round.
                place[h] = _mm512_ternarylogic_epi32(sign_bit, raw[h], place[h], 0xCA);
                key[h] = _mm512_xor_si512(key[h], _mm512_srai_epi16(raw[h], 15));
            }
        }
        const __m512i bucket = _mm512_permutex2var_epi8(place[0], odd_bytes, place[1]);
        const __mmask64 upper = _mm512_movepi8_mask(bucket);
        __m512i bound = base.at(bucket, upper);
        if constexpr (!kFlat) {
            const __m512i low = rises_low.at(bucket, upper), high = rises_high.at(bucket, upper);
            const auto risen = [&](__m512i rises, __m512i cell) {
                return _mm512_popcnt_epi16(
                    _mm512_and_si512(rises, _mm512_permutexvar_epi16(cell, up_to_cell)));
            };
            const __m512i rise =
                _mm512_packus_epi16(risen(_mm512_unpacklo_epi8(low, high), key[0]),
                                    risen(_mm512_unpackhi_epi8(low, high), key[1]));
            bound = _mm512_add_epi8(bound, rise);
        }
        if constexpr (kKind == Buckets::Kind::kMirrored) {
            const __mmask64 negative = _mm512_movepi8_mask(_mm512_packs_epi16(raw[0], raw[1]));
            bound = _mm512_mask_subs_epu8(bound, negative, mirror, bound);
        }
        _mm512_store_si512(bounds + i, bound);
    });
    prefetches = ahead;
}

// How many of up to 2^kLevels - 1 limits lie below, by their upper 16 bits; bits in reverse.
template <int kLevels>
struct KeySearch {
    __m512i level0, level1, level2, level3, level4, five, six0, six1, seven0, seven1, seven2,
        seven3;
    ALWAYS_INLINE explicit KeySearch(const Search& search)
        : level0(_mm512_load_si512(search.level[0])), level1(_mm512_load_si512(search.level[1])),
          level2(_mm512_load_si512(search.level[2])), level3(_mm512_load_si512(search.level[3])),
          level4(_mm512_load_si512(search.level[4])), five(_mm512_load_si512(search.level[5])),
          six0(_mm512_load_si512(search.level[6])), six1(_mm512_load_si512(search.level[6] + 32)),
          seven0(_mm512_load_si512(search.level[7])),
          seven1(_mm512_load_si512(search.level[7] + 32)),
          seven2(_mm512_load_si512(search.level[7] + 64)),
          seven3(_mm512_load_si512(search.level[7] + 96)) {}
    ALWAYS_INLINE __m512i operator()(__m512i key) const {
        __m512i path = _mm512_setzero_si512();
        if constexpr (kLevels > 7) path = step<0>(path, key, level0);
        if constexpr (kLevels > 6) path = look<1>(path, key, level1);
        if constexpr (kLevels > 5) path = look<2>(path, key, level2);
        path = look<3>(path, key, level3);
        path = look<4>(path, key, level4);
        path = look<5>(path, key, five);
        path = step<6>(path, key, _mm512_permutex2var_epi16(six0, path, six1));
        const __m512i low = _mm512_permutex2var_epi16(seven0, path, seven1);
        const __m512i high = _mm512_permutex2var_epi16(seven2, path, seven3);
        const __mmask32 upper = _mm512_test_epi16_mask(path, _mm512_set1_epi16(64));
        return step<7>(path, key, _mm512_mask_blend_epi16(upper, low, high));
    }

  private:
    template <int l>
    ALWAYS_INLINE static __m512i look(__m512i path, __m512i key, __m512i nodes) {
        return step<l>(path, key, _mm512_permutexvar_epi16(path, nodes));
    }
    template <int l>
    ALWAYS_INLINE static __m512i step(__m512i path, __m512i key, __m512i node) {
        const __mmask32 above = _mm512_cmpgt_epu16_mask(key, node);
        const __m512i bit = _mm512_set1_epi16(1 << l);
        // There is no masked or of words; the bit is not set yet, so a sum will do.
        return _mm512_mask_add_epi16(path, above, path, bit);
    }
};

// First stage for any list.
template <int kLevels, class Source>
inline void bound_by_keys(const Search& search, const Source& source, std::uint8_t* bounds,
                          std::int64_t count, Ahead& prefetches) {
    Ahead ahead = prefetches;
    const KeySearch<kLevels> find(search);
    const __m512i reversal = _mm512_set1_epi64(static_cast<long long>(0x8040201008040201ull));
    const __m512i sign_bit = _mm512_set1_epi16(static_cast<short>(0x8000));
    // Ascending unsigned order of the upper halves: raw ^ (sign | 0x8000).
    const auto ordered = [&](__m512i raw) {
        return _mm512_ternarylogic_epi32(raw, _mm512_srai_epi16(raw, 15), sign_bit, 0x1E);
    };
    in_groups(count, [&]<bool whole>(std::int64_t i) ALWAYS_INLINE {
        ask(ahead, ahead.unit);
        __m512i raw[2];
        upper_halves<whole>(source, i, count, raw);
        const __m512i path =
            _mm512_packus_epi16(find(ordered(raw[0])), find(ordered(raw[1])));
        _mm512_store_si512(bounds + i, _mm512_gf2p8affine_epi64_epi8(path, reversal, 0));
    });
    prefetches = ahead;
}

// The signs of 64 floats, as 0 or 1 in strided order: packing keeps them.
ALWAYS_INLINE inline __m512i signs_of(const __m512 (&value)[4]) {
    const __m512i first =
        _mm512_packs_epi32(_mm512_castps_si512(value[0]), _mm512_castps_si512(value[1]));
    const __m512i second =
        _mm512_packs_epi32(_mm512_castps_si512(value[2]), _mm512_castps_si512(value[3]));
    const __m512i top_bit = _mm512_set1_epi64(static_cast<long long>(0x8000000000000000ull));
    return _mm512_gf2p8affine_epi64_epi8(_mm512_packs_epi16(first, second), top_bit, 0);
}

template <bool whole>
ALWAYS_INLINE inline void store_codes(std::uint8_t* codes, std::int64_t rest, __m512i code) {
    if constexpr (whole) {
        _mm512_storeu_si512(codes, code);
    } else {
        _mm512_mask_storeu_epi8(codes, (1ull << rest) - 1ull, code);
    }
}

// Second stage: as many steps up as `rounds`, each past a limit that is below the value. Calls
// store<whole>(i, codes) with 64 codes in strided order.
template <class Limits, class Source, class Store>
inline void settle(const Source& source, int rounds, const float* n, const std::uint8_t* bounds,
                   std::int64_t count, const Store& store) {
    const Limits limits(source);
    in_groups(count, [&]<bool whole>(std::int64_t i) ALWAYS_INLINE {
        __m512i code = _mm512_load_si512(bounds + i);
        for (int r = 0; r < rounds; ++r) {
            __m512 limit[4];
            limits.floats(code, limit);
            // The sign of limit - value says which is greater; comparisons into masks would cost
            // more. Past the last limit there is NaN, without a sign.
            __m512 above[4];
            for (int q = 0; q < 4; ++q) {
                const std::int64_t at = i + 16 * q;
                const __m512 value = load_some<whole>(n + at, count - at);
                above[q] = _mm512_sub_ps(limit[q], value);
            }
            code = _mm512_add_epi8(code, signs_of(above));
        }
        store.template operator()<whole>(i, code);
    });
}

// Random numbers of 16 elements, as uniform_of has them: with 128 before it, a draw is the mantissa
// of a float, and 128 - 2^-17 is taken away.
ALWAYS_INLINE inline __m512 uniforms(__m512i draws) {
    const __m512i before = _mm512_castps_si512(_mm512_set1_ps(128.0f));
    const __m512 less = _mm512_set1_ps(127.99999237060546875f);
    return _mm512_sub_ps(_mm512_castsi512_ps(_mm512_or_si512(draws, before)), less);
}

// Draws as draws_of leaves them.
struct StoredDraws {
    const std::uint16_t* draws;
    ALWAYS_INLINE __m512 uniform(std::int64_t i, __m512) const {  // the scratch has room
        const __m256i some = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(draws + i));
        return uniforms(_mm512_cvtepu16_epi32(some));
    }
};

// Draws that are spread over steps, from an element on; those of negative values are turned round.
struct SpreadDraws {
    __m512i words;
    ALWAYS_INLINE explicit SpreadDraws(std::uint32_t word) {
        const __m512i lanes =
            _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        const __m512i each = _mm512_set1_epi32(static_cast<int>(kPerElement));
        words = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(word)),
                                 _mm512_mullo_epi32(lanes, each));
    }
    ALWAYS_INLINE __m512 uniform(std::int64_t i, __m512 value) const {
        const auto ahead = static_cast<std::uint32_t>(i) * kPerElement;
        const __m512i plain = _mm512_add_epi32(words, _mm512_set1_epi32(static_cast<int>(ahead)));
        // -0 is not negative.
        const __m512i bits = _mm512_castps_si512(_mm512_add_ps(value, _mm512_setzero_ps()));
        const __m512i word = _mm512_xor_si512(plain, _mm512_srai_epi32(bits, 31));
        return uniforms(_mm512_srli_epi32(word, 16));
    }
};

// Call with(draws) for the elements of a tile.
template <class With>
ALWAYS_INLINE inline void with_draws(const NoiseKey& noise, std::int64_t first, std::int64_t count,
                                     Scratch& scratch, const With& with) {
    if (noise.key1 & kSpread) {
        with(SpreadDraws(spread_word_at(noise, first)));
    } else {
        with(StoredDraws{draws_of(noise, first, count, scratch)});
    }
}

// The sign says whether a value `over` its lower neighbour, whose gap is given, is rounded up; see
// rounds_up. `kBent`: with a bend.
template <bool kBent>
ALWAYS_INLINE inline __m512 chance_of(__m512 random, __m512 over, __m512 gap, __m512 bend) {
    if constexpr (kBent) {
        const __m512 bent = _mm512_mul_ps(over, bend);
        over = _mm512_add_ps(over, bent);
        gap = _mm512_add_ps(gap, bent);
    }
    return _mm512_sub_ps(_mm512_mul_ps(random, gap), over);
}

// Third stage of stochastic rounding: strided codes of the lower neighbours, rounded up by chance.
template <class Values, bool kBent, class Draws, class Source>
inline void round_up(const Source& source, int size, float bend, const float* n,
                     const Draws& draws, const std::uint8_t* lower, std::uint8_t* codes,
                     std::int64_t count) {
    const Values values(source);
    const __m512i last = _mm512_set1_epi8(static_cast<char>(size - 1));
    const __m512i natural = _mm512_load_si512(kOrders.natural);
    const __m512 bends = _mm512_set1_ps(bend);
    in_groups(count, [&]<bool whole>(std::int64_t i) ALWAYS_INLINE {
        const __m512i code = _mm512_load_si512(lower + i);
        __m512 low[4], high[4], chance[4];
        values.neighbours(code, low, high);
        for (int q = 0; q < 4; ++q) {
            const std::int64_t j = i + 16 * q;
            const __m512 value = load_some<whole>(n + j, count - j);
            chance[q] = chance_of<kBent>(draws.uniform(j, value), _mm512_sub_ps(value, low[q]),
                                         _mm512_sub_ps(high[q], low[q]), bends);
        }
        const __m512i rounded = _mm512_min_epu8(_mm512_adds_epu8(code, signs_of(chance)), last);
        store_codes<whole>(codes + i, count - i, _mm512_permutexvar_epi8(natural, rounded));
    });
}

// All stages where the bits of values are evenly spaced: those of the lower neighbour are the first
// of a value's own.
template <bool kBent, class Draws, class Source>
inline void round_bits(const Lookup& lookup, int size, float bend, const Source& source,
                       const Draws& draws, std::uint8_t* codes, std::int64_t count) {
    const __m512 lowest = _mm512_set1_ps(lookup.value[0]);
    const __m512 highest = _mm512_set1_ps(lookup.value[size - 1]);
    const __m512 bends = _mm512_set1_ps(bend);
    const __m512i first = _mm512_set1_epi32(static_cast<int>(lookup.first));
    const __m512i step = _mm512_set1_epi32(1 << lookup.shift);
    const __m512i kept = _mm512_set1_epi32(-(1 << lookup.shift));
    const __m128i shift = _mm_cvtsi32_si128(lookup.shift);
    const __m512i natural = _mm512_load_si512(kOrders.natural);
    in_groups(count, [&]<bool whole>(std::int64_t i) ALWAYS_INLINE {
        __m512i code[4];
        for (int q = 0; q < 4; ++q) {
            const std::int64_t j = i + 16 * q;
            // NaN takes the last code.
            const __m512 n = _mm512_max_ps(
                _mm512_min_ps(source.template load<whole>(j, count), highest), lowest);
            const __m512i bits = _mm512_and_si512(_mm512_castps_si512(n), kept);
            const __m512 low = _mm512_castsi512_ps(bits);
            const __m512 high = _mm512_castsi512_ps(_mm512_add_epi32(bits, step));
            const __m512 chance = chance_of<kBent>(draws.uniform(j, n), _mm512_sub_ps(n, low),
                                                   _mm512_sub_ps(high, low), bends);
            const __m512i lower = _mm512_srl_epi32(_mm512_sub_epi32(bits, first), shift);
            code[q] = _mm512_sub_epi32(lower, _mm512_srai_epi32(_mm512_castps_si512(chance), 31));
        }
        const __m512i packed = _mm512_packus_epi16(_mm512_packus_epi32(code[0], code[1]),
                                                   _mm512_packus_epi32(code[2], code[3]));
        store_codes<whole>(codes + i, count - i, _mm512_permutexvar_epi8(natural, packed));
    });
}

template <class Source>
inline void bound(const Search& search, const Source& source, std::uint8_t* bounds,
                  std::int64_t count, Ahead& ahead) {
    using Kind = Buckets::Kind;
    const Buckets& buckets = search.buckets;
    if (buckets.rounds > 0) {
        const bool is_unsigned = buckets.kind == Kind::kUnsigned;
        const auto chosen =
            buckets.kind == Kind::kSplit ? bound_by_buckets<Kind::kSplit, false, Source>
            : buckets.flat ? (is_unsigned ? bound_by_buckets<Kind::kUnsigned, true, Source>
                                          : bound_by_buckets<Kind::kMirrored, true, Source>)
                           : (is_unsigned ? bound_by_buckets<Kind::kUnsigned, false, Source>
                                          : bound_by_buckets<Kind::kMirrored, false, Source>);
        return chosen(search, source, bounds, count, ahead);
    }
    const auto chosen = search.levels > 7   ? bound_by_keys<8, Source>
                        : search.levels > 6 ? bound_by_keys<7, Source>
                        : search.levels > 5 ? bound_by_keys<6, Source>
                                            : bound_by_keys<5, Source>;
    chosen(search, source, bounds, count, ahead);
}

// Both stages for a tile.
template <class Source, class Store>
inline void search_tile(const Search& search, const Source& tile, std::int64_t count,
                        Scratch& scratch, const Store& store) {
    const int rounds = search.buckets.rounds > 0 ? search.buckets.rounds : search.repeats;
    bound(search, tile, scratch.bounds, count, scratch.ahead);
    if (search.count < 32) {
        settle<Few>(search.few, rounds, tile.values, scratch.bounds, count, store);
    } else {
        settle<Planes>(search.plane, rounds, tile.values, scratch.bounds, count, store);
    }
}

template <class Source>
inline void search_source(const Search& search, const Source& source, std::uint8_t* codes,
                          std::int64_t count, Scratch& scratch, bool streams) {
    const __m512i natural = _mm512_load_si512(kOrders.natural);
    for (std::int64_t at = 0; at < count; at += kTile) {
        const std::int64_t some = count - at < kTile ? count - at : kTile;
        search_tile(search, source.from(at), some, scratch,
                    [&]<bool whole>(std::int64_t i, __m512i code) ALWAYS_INLINE {
                        const __m512i plain = _mm512_permutexvar_epi8(natural, code);
                        if (whole && streams) {
                            _mm512_stream_si512(reinterpret_cast<__m512i*>(codes + at + i), plain);
                        } else {
                            store_codes<whole>(codes + at + i, some - i, plain);
                        }
                    });
    }
}

// Codes that are rounded stochastically; the first value is element `first` of the tensor.
template <class Source>
inline void round_source(const Codec& codec, const Source& source, std::int64_t first,
                         std::uint8_t* codes, std::int64_t count, Scratch& scratch) {
    const Codebook& codebook = *codec.codebook;
    const Lookup& values = codebook.values;
    const int size = codebook.size;
    std::uint8_t* lower = scratch.bounds;
    for (std::int64_t at = 0; at < count; at += kTile) {
        const std::int64_t some = count - at < kTile ? count - at : kTile;
        const Source tile = source.from(at);
        if (values.shift) {
            with_draws(codec.noise, first + at, some, scratch, [&](const auto& draws) ALWAYS_INLINE {
                using Draws = std::decay_t<decltype(draws)>;
                const auto chosen = codebook.bend != 0.0f ? round_bits<true, Draws, Source>
                                                          : round_bits<false, Draws, Source>;
                chosen(values, size, codebook.bend, tile, draws, codes + at, some);
            });
            continue;
        }
        search_tile(codebook.stochastic, tile, some, scratch,
                    [&]<bool>(std::int64_t i, __m512i code)
                        ALWAYS_INLINE { _mm512_store_si512(lower + i, code); });
        with_draws(codec.noise, first + at, some, scratch, [&](const auto& draws) ALWAYS_INLINE {
            using Draws = std::decay_t<decltype(draws)>;
            const auto by_chance = [&]<class Values, class Table>(const Table& table) ALWAYS_INLINE {
                const auto chosen = codebook.bend != 0.0f ? round_up<Values, true, Draws, Table>
                                                          : round_up<Values, false, Draws, Table>;
                chosen(table, size, codebook.bend, tile.values, draws, lower, codes + at, some);
            };
            if (size <= 32) {
                by_chance.template operator()<Few, decltype(values.value)>(values.value);
            } else {
                by_chance.template operator()<Planes, decltype(values.plane)>(values.plane);
            }
        });
    }
}

inline void search_codes(const Search& search, const float* n, std::uint8_t* codes,
                         std::int64_t count, Scratch& scratch) {
    search_source(search, Normalized{n}, codes, count, scratch, false);
}

inline void round_codes(const Codec& codec, const float* n, std::int64_t first,
                        std::uint8_t* codes, std::int64_t count, Scratch& scratch) {
    round_source(codec, Normalized{n}, first, codes, count, scratch);
}

// Codes of x / divisor, block by block, where that can be done in one go. The first value begins
// a block.
inline bool encode_divided(const Codec& codec, const float* x, const float* divisor,
                           std::int64_t block, std::int64_t first, std::uint8_t* codes,
                           std::int64_t count, Scratch& scratch) {
    if (!in_whole_lanes(block, 0)) return false;
    const int shift = __builtin_ctzll(static_cast<unsigned long long>(block));
    const InBlocks source{x, divisor, shift, scratch.n, 0};
    if (codec.stochastic) {
        round_source(codec, source, first, codes, count, scratch);
        return true;
    }
    // Codes of other widths are packed from a buffer, which stays in the caches.
    const bool streams = scratch.streams && codes != scratch.codes && is_line(codes);
    search_source(codec.codebook->nearest, source, codes, count, scratch, streams);
    return true;
}

// Permutes and packs of whole registers that encoding 64 elements takes. Benchmarks compare them
// with `shuffles` (limits.hpp): one unit does both. Unpacks, which another unit does as well, are
// not counted, nor is what packs codes of less than 8 bits.
inline int encode_shuffles(const Codebook& codebook, bool stochastic) {
    if (codebook.wide) return 0;
    const Search& search = stochastic ? codebook.stochastic : codebook.nearest;
    const Buckets& buckets = search.buckets;
    int shuffles = 2;  // upper_halves
    if (buckets.rounds > 0) {
        shuffles += 1 + Table::kShuffles;  // buckets and their guesses
        if (!buckets.flat) shuffles += 2 * Table::kShuffles + 2 + 1;  // cells, and their pack
        if (buckets.kind == Buckets::Kind::kMirrored) shuffles += 1;  // the signs
    } else {
        const int one_by_one = search.levels > 6 ? 5 : search.levels > 5 ? 4 : 3;
        shuffles += 2 * (one_by_one + 1 + 2) + 1;  // KeySearch for each half, and the pack of both
    }
    const int rounds = buckets.rounds > 0 ? buckets.rounds : search.repeats;
    const int signs = 3;  // signs_of
    shuffles += rounds * ((search.count < 32 ? Few::kShuffles : Planes::kShuffles) + signs);
    if (stochastic) {
        shuffles += codebook.size <= 32 ? Few::kNeighbourShuffles : Planes::kNeighbourShuffles;
        shuffles += signs + 4;  // also those of store_eight, in philox.hpp
    }
    return shuffles + 1;  // from strided to natural
}
