// Codes of 9 to 16 bits: two bytes each while they are worked on. As in pack.hpp, `at` is a
// multiple of 8, so that it falls on a whole byte.

// Eight codes: the first four begin at bit 0, the others `bits / 2` bytes on, and half a byte more
// where `bits` is odd.
template <int bits>
inline void unpack_eight(const std::uint8_t* from, std::uint16_t* codes) {
    constexpr std::uint64_t mask = (1ull << bits) - 1;
    const std::uint64_t low = read_bytes(from, (bits + 1) / 2);
    const std::uint64_t high = read_bytes(from + bits / 2, (bits + 1) / 2) >> (bits % 2 * 4);
    for (int j = 0; j < 4; ++j) {
        codes[j] = static_cast<std::uint16_t>(low >> (bits * j) & mask);
        codes[j + 4] = static_cast<std::uint16_t>(high >> (bits * j) & mask);
    }
}

template <int bits>
inline void pack_eight(const std::uint16_t* codes, std::uint8_t* to) {
    std::uint64_t low = 0, high = 0;
    for (int j = 0; j < 4; ++j) {
        low |= static_cast<std::uint64_t>(codes[j]) << (bits * j);
        high |= static_cast<std::uint64_t>(codes[j + 4]) << (bits * j);
    }
    write_bytes(low, to, bits / 2);
    // The half byte that an odd width leaves over goes before the others.
    if (bits % 2) high = high << 4 | low >> (bits / 2 * 8);
    write_bytes(high, to + bits / 2, (bits + 1) / 2);
}

#if defined(__AVX512VBMI__)
// Which bytes 16 pairs of codes of 12 bits are stored as: three of each four, and back.
struct TwelveBits {
    alignas(64) std::uint8_t stored[64] = {}, apart[64] = {};
    constexpr TwelveBits() {
        for (int k = 0; k < 48; ++k) stored[k] = static_cast<std::uint8_t>(k / 3 * 4 + k % 3);
        for (int k = 0; k < 64; ++k)
            apart[k] = static_cast<std::uint8_t>(k / 4 * 3 + (k % 4 < 3 ? k % 4 : 2));
    }
};
static constexpr TwelveBits kTwelveBits;

// 32 codes at a time; returns how many were done.
inline std::int64_t pack_twelve(const std::uint16_t* codes, std::int64_t count, std::uint8_t* to) {
    std::int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        const __m512i pairs = _mm512_loadu_si512(codes + i);
        const __m512i joined =
            _mm512_or_si512(_mm512_and_si512(pairs, _mm512_set1_epi32(0xFFF)),
                            _mm512_and_si512(_mm512_srli_epi32(pairs, 4), _mm512_set1_epi32(0xFFF000)));
        const __m512i bytes =
            _mm512_permutexvar_epi8(_mm512_load_si512(kTwelveBits.stored), joined);
        _mm512_mask_storeu_epi8(to + i * 3 / 2, (std::uint64_t{1} << 48) - 1u, bytes);
    }
    return i;
}
inline std::int64_t unpack_twelve(const std::uint8_t* from, std::int64_t count,
                                  std::uint16_t* codes) {
    std::int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        const __m512i bytes =
            _mm512_maskz_loadu_epi8((std::uint64_t{1} << 48) - 1u, from + i * 3 / 2);
        const __m512i joined = _mm512_permutexvar_epi8(_mm512_load_si512(kTwelveBits.apart), bytes);
        const __m512i pairs =
            _mm512_or_si512(_mm512_and_si512(joined, _mm512_set1_epi32(0xFFF)),
                            _mm512_and_si512(_mm512_slli_epi32(joined, 4), _mm512_set1_epi32(0xFFF0000)));
        _mm512_storeu_si512(codes + i, pairs);
    }
    return i;
}
#else
inline std::int64_t pack_twelve(const std::uint16_t*, std::int64_t, std::uint8_t*) { return 0; }
inline std::int64_t unpack_twelve(const std::uint8_t*, std::int64_t, std::uint16_t*) { return 0; }
#endif

template <int bits>
inline void unpack_wide_of(const std::uint8_t* from, std::int64_t count, std::uint16_t* codes) {
    std::int64_t i = bits == 12 ? unpack_twelve(from, count, codes) : 0;
    from += i * bits / 8;
    for (; i + 8 <= count; i += 8, from += bits) unpack_eight<bits>(from, codes + i);
    if (i == count) return;
    std::uint8_t last[16] = {};
    __builtin_memcpy(last, from, static_cast<std::size_t>(((count - i) * bits + 7) / 8));
    std::uint16_t eight[8];
    unpack_eight<bits>(last, eight);
    for (int j = 0; i < count; ++i, ++j) codes[i] = eight[j];
}

template <int bits>
inline void pack_wide_of(const std::uint16_t* codes, std::int64_t count, std::uint8_t* to) {
    std::int64_t i = bits == 12 ? pack_twelve(codes, count, to) : 0;
    to += i * bits / 8;
    for (; i + 8 <= count; i += 8, to += bits) pack_eight<bits>(codes + i, to);
    if (i == count) return;
    const std::int64_t rest = count - i;
    std::uint16_t eight[8] = {};
    for (int j = 0; i < count; ++i, ++j) eight[j] = codes[i];
    std::uint8_t last[16];
    pack_eight<bits>(eight, last);
    __builtin_memcpy(to, last, static_cast<std::size_t>((rest * bits + 7) / 8));
}

inline void unpack_wide(const std::uint8_t* packed, int bits, std::int64_t at, std::int64_t count,
                        std::uint16_t* codes) {
    const std::uint8_t* from = packed + at * bits / 8;
    if (kAsStored && bits == 16) {
        __builtin_memcpy(codes, from, static_cast<std::size_t>(count) * 2);
        return;
    }
    switch (bits) {
        case 9: return unpack_wide_of<9>(from, count, codes);
        case 10: return unpack_wide_of<10>(from, count, codes);
        case 11: return unpack_wide_of<11>(from, count, codes);
        case 12: return unpack_wide_of<12>(from, count, codes);
        case 13: return unpack_wide_of<13>(from, count, codes);
        case 14: return unpack_wide_of<14>(from, count, codes);
        case 15: return unpack_wide_of<15>(from, count, codes);
        default: return unpack_wide_of<16>(from, count, codes);
    }
}

inline void pack_wide(const std::uint16_t* codes, int bits, std::int64_t at, std::int64_t count,
                      std::uint8_t* packed) {
    std::uint8_t* to = packed + at * bits / 8;
    if (kAsStored && bits == 16) {
        __builtin_memcpy(to, codes, static_cast<std::size_t>(count) * 2);
        return;
    }
    switch (bits) {
        case 9: return pack_wide_of<9>(codes, count, to);
        case 10: return pack_wide_of<10>(codes, count, to);
        case 11: return pack_wide_of<11>(codes, count, to);
        case 12: return pack_wide_of<12>(codes, count, to);
        case 13: return pack_wide_of<13>(codes, count, to);
        case 14: return pack_wide_of<14>(codes, count, to);
        case 15: return pack_wide_of<15>(codes, count, to);
        default: return pack_wide_of<16>(codes, count, to);
    }
}

// Values of codes, which are overwritten where they become numbers of their format.
inline void look_up_wide(const WideCodebook& codebook, std::uint16_t* codes, std::int64_t count,
                         float* out) {
    if (codebook.even.coarse != 0.0f) {
        const EvenValues even = codebook.even;
        for (std::int64_t i = 0; i < count; ++i) out[i] = even_value(even, codes[i]);
        return;
    }
    if (codebook.format != Dtype::kFloat32) {
        const std::uint16_t zero = codebook.zero, most = codebook.most;
        for (std::int64_t i = 0; i < count; ++i) codes[i] = half_of_code(codes[i], zero, most);
        load(codes, codebook.format, 0, count, out);
        return;
    }
    const float* value = codebook.value.get();
    for (std::int64_t i = 0; i < count; ++i) out[i] = value[codes[i]];
}

// Nearest codes by rounding to the codebook's format. NaN, which is infinity here, takes the last.
inline void round_to_format(const WideCodebook& codebook, const float* n, std::uint16_t* codes,
                            std::int64_t count) {
    store(n, codes, codebook.format, 0, count);
    const std::uint16_t zero = codebook.zero, most = codebook.most;
    for (std::int64_t i = 0; i < count; ++i) codes[i] = code_of_half(codes[i], zero, most);
}

inline void search_wide(const WideSearch& search, const float* n, std::uint16_t* codes,
                        std::int64_t count) {
    const float* limit = search.limit.get();
    if (search.slope != 0.0f) {
        // Two loops: the first has no look-up, so it vectorizes.
        for (std::int64_t i = 0; i < count; ++i)
            codes[i] = static_cast<std::uint16_t>(even_guess(search, n[i]));
        for (std::int64_t i = 0; i < count; ++i)
            codes[i] = static_cast<std::uint16_t>(codes[i] + (n[i] > limit[codes[i]] ? 1 : 0));
        return;
    }
    const std::uint16_t* first = search.first.get();
    for (std::int64_t i = 0; i < count; ++i) {
        const int code = first[ordered_key(bits_of(n[i]))];
        codes[i] = static_cast<std::uint16_t>(refined(limit, code, search.steps, n[i]));
    }
}

inline void decode_wide(const Codec& codec, const ScaleView& view, std::int64_t at,
                        std::int64_t count, float* out, Scratch& scratch) {
    const WideCodebook& codebook = *codec.codebook->wide;
    unpack_wide(codec.packed, codec.codebook->bits, at, count, scratch.wide);
    look_up_wide(codebook, scratch.wide, count, out);
    const bool one = view.parts == 1 && view.part[0].count == 1 && view.part[0].values &&
                     *view.part[0].values == 1.0f;
    if (!one) multiply(view, at, count, out);
}

// Values of codes, each of them plus `more`, of a tile.
inline void look_up_beside(const WideCodebook& codebook, const std::uint16_t* codes, int more,
                           std::int64_t count, float* out) {
    std::uint16_t beside[kTile];
    for (std::int64_t i = 0; i < count; ++i) beside[i] = static_cast<std::uint16_t>(codes[i] + more);
    look_up_wide(codebook, beside, count, out);
}

// Codes of the lower neighbours of a tile.
inline void lower_codes(const WideCodebook& codebook, const float* n, std::uint16_t* codes,
                        std::int64_t count, Scratch& scratch) {
    if (codebook.format == Dtype::kFloat32) {
        search_wide(codebook.stochastic, n, codes, count);
        return;
    }
    round_to_format(codebook, n, codes, count);
    look_up_beside(codebook, codes, 0, count, scratch.low);
    for (std::int64_t i = 0; i < count; ++i) {
        const int above = scratch.low[i] > n[i] && codes[i] > 0 ? 1 : 0;
        codes[i] = static_cast<std::uint16_t>(codes[i] - above);
    }
}

// All of round_wide where values are evenly spaced, without look-ups, so that it vectorizes.
inline void round_evenly(const WideCodebook& codebook, const float* __restrict n,
                         const std::uint16_t* __restrict draws, std::uint32_t mirror,
                         std::int64_t count, float bend, std::uint16_t* __restrict codes) {
    const EvenValues even = codebook.even;
    const float slope = codebook.stochastic.slope, offset = codebook.stochastic.offset;
    const float top = codebook.stochastic.top;
    for (std::int64_t i = 0; i < count; ++i) {
        const int guess = even_guess(n[i], slope, offset, top);
        // A limit is the largest float below the next value. Infinity takes the last code.
        const int above = n[i] >= even_value(even, guess + 1) ? 1 : 0;
        const int nearest = guess + above;
        const int code = nearest < even.last ? nearest : even.last;
        const int below = code < even.last ? 1 : 0;
        const int up =
            rounds_up(draws[i], mirror, n[i], even_value(even, code), even_value(even, code + 1), bend)
                ? 1
                : 0;
        codes[i] = static_cast<std::uint16_t>(code + (up & below));
    }
}

inline void round_wide(const Codec& codec, const float* n, std::int64_t at, std::int64_t count,
                       std::uint16_t* codes, Scratch& scratch) {
    const WideCodebook& codebook = *codec.codebook->wide;
    if (codebook.even.coarse != 0.0f) {  // all values are distinct
        for (std::int64_t i = 0; i < count; i += kTile) {
            const std::int64_t some = count - i < kTile ? count - i : kTile;
            const std::uint16_t* draws = draws_of(codec.noise, at + i, some, scratch);
            round_evenly(codebook, n + i, draws, mirror_of(codec.noise.key1), some,
                         codec.codebook->bend, codes + i);
        }
        return;
    }
    for (std::int64_t i = 0; i < count; i += kTile) {
        const std::int64_t some = count - i < kTile ? count - i : kTile;
        lower_codes(codebook, n + i, codes + i, some, scratch);
        look_up_beside(codebook, codes + i, 0, some, scratch.low);
        look_up_beside(codebook, codes + i, 1, some, scratch.high);
        const std::uint16_t* draws = draws_of(codec.noise, at + i, some, scratch);
        raise(codes + i, codec.codebook->size - 1, n + i, scratch.low, scratch.high, draws,
              mirror_of(codec.noise.key1), some, codec.codebook->bend);
    }
    if (!codebook.lowest) return;
    for (std::int64_t i = 0; i < count; ++i) codes[i] = codebook.lowest[codes[i]];
}

inline void encode_wide(const Codec& codec, const float* n, std::int64_t at, std::int64_t count,
                        Scratch& scratch) {
    const WideCodebook& codebook = *codec.codebook->wide;
    std::uint16_t* codes = scratch.wide;
    if (codec.stochastic) {
        round_wide(codec, n, at, count, codes, scratch);
    } else if (codebook.format != Dtype::kFloat32) {
        round_to_format(codebook, n, codes, count);
    } else {
        search_wide(codebook.nearest, n, codes, count);
    }
    pack_wide(codes, codec.codebook->bits, at, count, codec.packed);
}
