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

template <int bits>
inline void unpack_wide_of(const std::uint8_t* from, std::int64_t count, std::uint16_t* codes) {
    std::int64_t i = 0;
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
    std::int64_t i = 0;
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

inline void search_wide(const WideSearch& search, const float* n, std::uint16_t* codes,
                        std::int64_t count) {
    const float* limit = search.limit.get();
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
    const float* value = codebook.value.get();
    for (std::int64_t i = 0; i < count; ++i) out[i] = value[scratch.wide[i]];
    multiply(view, at, count, out);
}

inline void encode_wide(const Codec& codec, const float* n, std::int64_t at, std::int64_t count,
                        Scratch& scratch) {
    const WideCodebook& codebook = *codec.codebook->wide;
    std::uint16_t* codes = scratch.wide;
    search_wide(codec.stochastic ? codebook.stochastic : codebook.nearest, n, codes, count);
    const float* value = codebook.value.get();
    for (std::int64_t i = 0; codec.stochastic && i < count; i += kTile) {
        const std::int64_t some = count - i < kTile ? count - i : kTile;
        const std::uint16_t* draws = draws_of(codec.noise, at + i, some, scratch);
        for (std::int64_t j = 0; j < some; ++j) {
            const int code = codes[i + j];
            const bool up = code < codec.codebook->size - 1 &&
                            rounds_up(draws[j], n[i + j], value[code], value[code + 1]);
            codes[i + j] = static_cast<std::uint16_t>(code + (up ? 1 : 0));
            if (codebook.lowest) codes[i + j] = codebook.lowest[codes[i + j]];
        }
    }
    pack_wide(codes, codec.codebook->bits, at, count, codec.packed);
}
