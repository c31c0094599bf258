// Search and look-up in registers, 64 elements at a time.
//
// Needs F, BW, DQ, VL, VBMI and GFNI: byte and word permutes are the table look-ups.

inline std::uint8_t search_one(const Search& search, float value) {
    int code = search.first[ordered_key(bits_of(value))];
    for (int r = 0; r < search.repeats; ++r) code += value > search.limit[code] ? 1 : 0;
    return static_cast<std::uint8_t>(code);
}

struct alignas(64) Orders {
    std::uint16_t upper[32];      // upper halves of 32 floats in two registers
    std::uint8_t low_bytes[64];   // low bytes of 64 words in two registers
    std::uint8_t strided[64];     // bytes into that order
    std::uint8_t natural[64];     // and back
    std::uint8_t reversed[64];    // numbers of 5 bits with their bits in reverse
    constexpr Orders() : upper(), low_bytes(), strided(), natural(), reversed() {
        for (unsigned i = 0; i < 64; ++i)
            for (int bit = 0; bit < 5; ++bit)
                reversed[i] |= static_cast<std::uint8_t>((i >> bit & 1u) << (4 - bit));
        for (int i = 0; i < 32; ++i) upper[i] = static_cast<std::uint16_t>(2 * i + 1);
        for (int i = 0; i < 64; ++i) low_bytes[i] = static_cast<std::uint8_t>(2 * i);
        for (int lane = 0; lane < 4; ++lane)
            for (int q = 0; q < 4; ++q)
                for (int k = 0; k < 4; ++k) {
                    const int element = 16 * q + 4 * lane + k;
                    strided[16 * lane + 4 * q + k] = static_cast<std::uint8_t>(element);
                    natural[element] = static_cast<std::uint8_t>(16 * lane + 4 * q + k);
                }
    }
};
inline constexpr Orders kOrders;

// 256 bytes by their index.
struct Table {
    __m512i part[4];
    explicit Table(const std::uint8_t* bytes) {
        for (int j = 0; j < 4; ++j) part[j] = _mm512_load_si512(bytes + 64 * j);
    }
    // `upper`: the indices from 128 on.
    __m512i at(__m512i index, __mmask64 upper) const {
        const __m512i low = _mm512_permutex2var_epi8(part[0], index, part[1]);
        const __m512i high = _mm512_permutex2var_epi8(part[2], index, part[3]);
        return _mm512_mask_blend_epi8(upper, low, high);
    }
};

// 256 floats by their index, a table for each of their bytes.
struct Planes {
    Table plane[4];
    explicit Planes(const std::uint8_t (*bytes)[kMaxCodes])
        : plane{Table(bytes[0]), Table(bytes[1]), Table(bytes[2]), Table(bytes[3])} {}
    // The floats at 64 strided indices, in natural order.
    void floats(__m512i strided, __m512 (&out)[4]) const {
        const __mmask64 upper = _mm512_movepi8_mask(strided);
        const __m512i b0 = plane[0].at(strided, upper), b1 = plane[1].at(strided, upper);
        const __m512i b2 = plane[2].at(strided, upper), b3 = plane[3].at(strided, upper);
        const __m512i low01 = _mm512_unpacklo_epi8(b0, b1), high01 = _mm512_unpackhi_epi8(b0, b1);
        const __m512i low23 = _mm512_unpacklo_epi8(b2, b3), high23 = _mm512_unpackhi_epi8(b2, b3);
        out[0] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(low01, low23));
        out[1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(low01, low23));
        out[2] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(high01, high23));
        out[3] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(high01, high23));
    }
};

// Upper 16 bits of 32 floats in ascending unsigned order.
inline __m512i ordered_keys(__m512 a, __m512 b) {
    const __m512i upper = _mm512_load_si512(kOrders.upper);
    const __m512i raw =
        _mm512_permutex2var_epi16(_mm512_castps_si512(a), upper, _mm512_castps_si512(b));
    const __m512i sign = _mm512_srai_epi16(raw, 15);
    // raw ^ (sign | 0x8000)
    return _mm512_ternarylogic_epi32(raw, sign, _mm512_set1_epi16(static_cast<short>(0x8000)), 0x1E);
}

// Where searches take their values from: `load` gives 16 of them, as far as `some` says.
struct Normalized {
    const float* n;
    __m512 load(std::int64_t i, __mmask16 some) const { return _mm512_maskz_loadu_ps(some, n + i); }
};

// Values yet to be divided by the scale of their block of 2^shift elements, at least 64.
struct InBlocks {
    const float* x;
    const float* divisor;
    int shift;
    __m512 load(std::int64_t i, __mmask16 some) const {
        const __m512 scale = _mm512_set1_ps(divisor[i >> shift]);
        return _mm512_div_ps(_mm512_maskz_loadu_ps(some, x + i), scale);
    }
};

// Which of 16 elements there are; with `whole`, all.
template <bool whole>
inline __mmask16 up_to(std::int64_t rest) {
    if constexpr (whole) return 0xFFFF;
    return rest >= 16 ? 0xFFFF : rest <= 0 ? 0 : static_cast<__mmask16>((1u << rest) - 1u);
}

// Call group<whole>(first) for every 64 of `count` elements; the last may not be whole.
template <class Group>
inline void in_groups(std::int64_t count, const Group& group) {
    std::int64_t i = 0;
    for (; i + 64 <= count; i += 64) group.template operator()<true>(i);
    if (i < count) group.template operator()<false>(i);
}

// Ask for four cache lines, as many as 64 floats fill. Asking for all of a stretch at once would
// take up what a core can wait for; a few between other work cost nothing.
inline void ask_for(const char* ahead, std::int64_t i) {
    if (ahead == nullptr) return;
    for (int line = 0; line < 4; ++line) __builtin_prefetch(ahead + 4 * i + 64 * line, 0, 2);
}

template <bool whole>
inline void store_codes(std::uint8_t* codes, std::int64_t rest, __m512i code) {
    if (whole || rest >= 64) {
        _mm512_storeu_si512(codes, code);
    } else {
        _mm512_mask_storeu_epi8(codes, (1ull << rest) - 1ull, code);
    }
}

// How many of up to 255 limits lie below, by their upper 16 bits; bits in reverse.
template <int kLevels>
struct KeySearch {
    __m512i level[5], five, six[2], seven[4];
    explicit KeySearch(const Search& search) {
        for (int l = 0; l < 5; ++l) level[l] = _mm512_load_si512(search.level[l]);
        five = _mm512_load_si512(search.level[5]);
        for (int j = 0; j < 2; ++j) six[j] = _mm512_load_si512(search.level[6] + 32 * j);
        for (int j = 0; j < 4; ++j) seven[j] = _mm512_load_si512(search.level[7] + 32 * j);
    }
    __m512i operator()(__m512i key) const {
        __m512i path = _mm512_setzero_si512();
        if constexpr (kLevels > 7) path = step<0>(path, key, level[0]);
        if constexpr (kLevels > 6) path = look<1>(path, key);
        if constexpr (kLevels > 5) path = look<2>(path, key);
        if constexpr (kLevels > 4) path = look<3>(path, key);
        if constexpr (kLevels > 3) path = look<4>(path, key);
        path = step<5>(path, key, _mm512_permutexvar_epi16(path, five));
        path = step<6>(path, key, _mm512_permutex2var_epi16(six[0], path, six[1]));
        const __m512i low = _mm512_permutex2var_epi16(seven[0], path, seven[1]);
        const __m512i high = _mm512_permutex2var_epi16(seven[2], path, seven[3]);
        const __mmask32 upper = _mm512_test_epi16_mask(path, _mm512_set1_epi16(64));
        return step<7>(path, key, _mm512_mask_blend_epi16(upper, low, high));
    }

  private:
    template <int l>
    __m512i look(__m512i path, __m512i key) const {
        return step<l>(path, key, _mm512_permutexvar_epi16(path, level[l]));
    }
    template <int l>
    static __m512i step(__m512i path, __m512i key, __m512i node) {
        const __mmask32 above = _mm512_cmpgt_epu16_mask(key, node);
        const __m512i bit = _mm512_set1_epi16(1 << l);
        // There is no masked or of words; the bit is not set yet, so a sum will do.
        return _mm512_mask_add_epi16(path, above, path, bit);
    }
};

inline __mmask64 join(const __mmask16 (&mask)[4]) {
    const __mmask32 low = _mm512_kunpackw(mask[1], mask[0]);
    const __mmask32 high = _mm512_kunpackw(mask[3], mask[2]);
    return _mm512_kunpackd(high, low);
}

template <int kLevels, class Source>
inline void search_large(const Search& search, const Source& source, std::uint8_t* codes,
                         std::int64_t count, const char* ahead) {
    const KeySearch<kLevels> find(search);
    const Planes limits(search.plane);
    const __m512i low_bytes = _mm512_load_si512(kOrders.low_bytes);
    const __m512i strided = _mm512_load_si512(kOrders.strided);
    const __m512i reversal = _mm512_set1_epi64(static_cast<long long>(0x8040201008040201ull));
    const __m512i one = _mm512_set1_epi8(1);
    for (std::int64_t i = 0; i < count; i += 64) {
        ask_for(ahead, i);
        __m512 value[4];
        for (int q = 0; q < 4; ++q) value[q] = source.load(i + 16 * q, up_to<false>(count - i - 16 * q));
        const __m512i first = find(ordered_keys(value[0], value[1]));
        const __m512i second = find(ordered_keys(value[2], value[3]));
        const __m512i path = _mm512_permutex2var_epi8(first, low_bytes, second);
        __m512i code = _mm512_gf2p8affine_epi64_epi8(path, reversal, 0);
        for (int r = 0; r < search.repeats; ++r) {
            __m512 limit[4];
            limits.floats(_mm512_permutexvar_epi8(strided, code), limit);
            __mmask16 above[4];
            for (int q = 0; q < 4; ++q)
                above[q] = _mm512_cmp_ps_mask(value[q], limit[q], _CMP_GT_OQ);
            code = _mm512_mask_add_epi8(code, join(above), code, one);
        }
        store_codes<false>(codes + i, count - i, code);
    }
}

// Where straight lines guess well. Registers hold 64 elements in the order that packing four
// registers of 32-bit numbers into bytes gives them, which is that of `strided`.
template <Buckets::Kind kKind, class Source>
inline void search_buckets(const Search& search, const Source& source, std::uint8_t* codes,
                           std::int64_t count, const char* ahead) {
    const Buckets& buckets = search.buckets;
    const Table base_low(buckets.base_low), base_high(buckets.base_high), slope(buckets.slope);
    const Planes limits(search.plane);
    const __m512 least = _mm512_set1_ps(4.656612873077393e-10f);  // 2^-31
    const __m512i natural = _mm512_load_si512(kOrders.natural);
    const __m512i strided = _mm512_load_si512(kOrders.strided);
    const __m512i one = _mm512_set1_epi8(1), zero = _mm512_setzero_si512();
    const __m512i low_byte = _mm512_set1_epi16(0xFF);
    const __m512i mirror = _mm512_set1_epi8(static_cast<char>(buckets.mirror));
    const auto group = [&]<bool whole>(std::int64_t i) __attribute__((always_inline)) {
        ask_for(ahead, i);
        __m512 value[4];
        __m512i raw[4], half[4];
        for (int q = 0; q < 4; ++q) {
            value[q] = source.load(i + 16 * q, up_to<whole>(count - i - 16 * q));
            // The larger magnitude, with the sign of the first.
            raw[q] = _mm512_castps_si512(kKind == Buckets::Kind::kUnsigned
                                             ? _mm512_max_ps(value[q], least)
                                             : _mm512_range_ps(value[q], least, 0x3));
            // Bucket and position within it, 8 bits each.
            half[q] = _mm512_srli_epi32(_mm512_slli_epi32(raw[q], 4), 16);
        }
        __m512i first = _mm512_packus_epi32(half[0], half[1]);
        __m512i second = _mm512_packus_epi32(half[2], half[3]);
        __m512i first_signs = zero, second_signs = zero;
        if constexpr (kKind != Buckets::Kind::kUnsigned) {
            first_signs = _mm512_packs_epi32(raw[0], raw[1]);
            second_signs = _mm512_packs_epi32(raw[2], raw[3]);
        }
        const __m512i bucket =
            _mm512_packus_epi16(_mm512_srli_epi16(first, 8), _mm512_srli_epi16(second, 8));
        const __mmask64 upper = _mm512_movepi8_mask(bucket);
        const __m512i steep = slope.at(bucket, upper);
        const __m512i low = base_low.at(bucket, upper), high = base_high.at(bucket, upper);
        const auto line = [&](__m512i packed, __m512i steep_words, __m512i base) {
            const __m512i position = _mm512_and_si512(packed, low_byte);
            const __m512i rise = _mm512_maddubs_epi16(position, steep_words);
            return _mm512_srli_epi16(_mm512_add_epi16(rise, base), 8);
        };
        __m512i code = _mm512_packus_epi16(
            line(first, _mm512_unpacklo_epi8(steep, zero), _mm512_unpacklo_epi8(low, high)),
            line(second, _mm512_unpackhi_epi8(steep, zero), _mm512_unpackhi_epi8(low, high)));
        if constexpr (kKind == Buckets::Kind::kMirrored) {
            const __mmask64 negative =
                _mm512_movepi8_mask(_mm512_packs_epi16(first_signs, second_signs));
            code = _mm512_mask_subs_epu8(code, negative, mirror, code);
        }
        __m512i plain = _mm512_permutexvar_epi8(natural, code);
        for (int r = 0; r < buckets.rounds; ++r) {
            if (r > 0) code = _mm512_permutexvar_epi8(strided, plain);
            __m512 limit[4];
            limits.floats(code, limit);
            __mmask16 above[4];
            for (int q = 0; q < 4; ++q)
                above[q] = _mm512_cmp_ps_mask(value[q], limit[q], _CMP_GT_OQ);
            plain = _mm512_mask_add_epi8(plain, join(above), plain, one);
        }
        store_codes<whole>(codes + i, count - i, plain);
    };
    in_groups(count, group);
}

// Up to 31 limits: all levels compare floats.
template <int kLevels, class Source>
inline void search_small(const Search& search, const Source& source, std::uint8_t* codes,
                         std::int64_t count, const char* ahead) {
    __m512 node[5];
    for (int l = 0; l < 5; ++l) node[l] = _mm512_load_ps(search.node[l]);
    const __m512i reversed = _mm512_load_si512(kOrders.reversed);
    const __m512i natural = _mm512_load_si512(kOrders.natural);
    const auto group = [&]<bool whole>(std::int64_t i) __attribute__((always_inline)) {
        ask_for(ahead, i);
        __m512i path[4];
        for (int q = 0; q < 4; ++q) {
            const __m512 value = source.load(i + 16 * q, up_to<whole>(count - i - 16 * q));
            path[q] = _mm512_setzero_si512();
            for (int l = 5 - kLevels; l < 5; ++l) {
                const __m512 at = _mm512_permutexvar_ps(path[q], node[l]);
                const __mmask16 above = _mm512_cmp_ps_mask(value, at, _CMP_GT_OQ);
                path[q] = _mm512_mask_or_epi32(path[q], above, path[q], _mm512_set1_epi32(1 << l));
            }
        }
        const __m512i bytes = _mm512_packus_epi16(_mm512_packus_epi32(path[0], path[1]),
                                                  _mm512_packus_epi32(path[2], path[3]));
        const __m512i code =
            _mm512_permutexvar_epi8(_mm512_permutexvar_epi8(natural, bytes), reversed);
        store_codes<whole>(codes + i, count - i, code);
    };
    in_groups(count, group);
}

template <class Source>
inline void search_source(const Search& search, const Source& source, std::uint8_t* codes,
                          std::int64_t count, const char* ahead) {
    using Kind = Buckets::Kind;
    if (search.buckets.rounds > 0) {
        if (search.buckets.kind == Kind::kUnsigned)
            return search_buckets<Kind::kUnsigned>(search, source, codes, count, ahead);
        return search_buckets<Kind::kMirrored>(search, source, codes, count, ahead);
    }
    switch (search.levels) {
        case 1: return search_small<1>(search, source, codes, count, ahead);
        case 2: return search_small<2>(search, source, codes, count, ahead);
        case 3: return search_small<3>(search, source, codes, count, ahead);
        case 4: return search_small<4>(search, source, codes, count, ahead);
        case 5: return search_small<5>(search, source, codes, count, ahead);
        case 6: return search_large<6>(search, source, codes, count, ahead);
        case 7: return search_large<7>(search, source, codes, count, ahead);
        default: return search_large<8>(search, source, codes, count, ahead);
    }
}

inline void search_codes(const Search& search, const float* n, std::uint8_t* codes,
                         std::int64_t count) {
    search_source(search, Normalized{n}, codes, count, nullptr);
}

// The same for x / divisor, block by block, where that can be done in one go.
inline bool search_blocks(const Search& search, const float* x, const float* divisor,
                          std::int64_t block, std::uint8_t* codes, std::int64_t count,
                          const char* ahead) {
    if (block < 64 || (block & (block - 1)) != 0) return false;
    search_source(search, InBlocks{x, divisor, __builtin_ctzll(static_cast<unsigned long long>(block))},
                  codes, count, ahead);
    return true;
}

// Values times the scale of their block, where that can be done in one go; at: of the first.
inline bool look_up_blocks(const Lookup& lookup, const std::uint8_t* codes, const float* scale,
                           std::int64_t block, std::int64_t at, float* out, std::int64_t count) {
    if (block < 64 || (block & (block - 1)) != 0 || at % 64 != 0) return false;
    const int shift = __builtin_ctzll(static_cast<unsigned long long>(block));
    const Planes values(lookup.plane);
    const __m512i strided = _mm512_load_si512(kOrders.strided);
    std::int64_t i = 0;
    for (; i + 64 <= count; i += 64) {
        __builtin_prefetch(codes + i + kTile, 0, 2);
        const __m512 factor = _mm512_set1_ps(scale[(at + i) >> shift]);
        __m512 value[4];
        values.floats(_mm512_permutexvar_epi8(strided, _mm512_loadu_si512(codes + i)), value);
        for (int q = 0; q < 4; ++q)
            _mm512_storeu_ps(out + i + 16 * q, _mm512_mul_ps(value[q], factor));
    }
    for (; i < count; ++i) out[i] = lookup.value[codes[i]] * scale[(at + i) >> shift];
    return true;
}

inline void look_up(const Lookup& lookup, const std::uint8_t* codes, float* out,
                    std::int64_t count) {
    const Planes values(lookup.plane);
    const __m512i strided = _mm512_load_si512(kOrders.strided);
    std::int64_t i = 0;
    for (; i + 64 <= count; i += 64) {
        __m512 value[4];
        values.floats(_mm512_permutexvar_epi8(strided, _mm512_loadu_si512(codes + i)), value);
        for (int q = 0; q < 4; ++q) _mm512_storeu_ps(out + i + 16 * q, value[q]);
    }
    for (; i < count; ++i) out[i] = lookup.value[codes[i]];
}
