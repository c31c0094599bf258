// Codes of any width to and from the packed stream; see qmaps.packing.
// `at` is a multiple of 8, so that it falls on a whole byte.

inline std::uint64_t gather_bits(std::uint64_t eight_codes, int bits);
inline std::uint64_t scatter_bits(std::uint64_t packed, int bits);

#if defined(__BMI2__)
inline std::uint64_t spread_mask(int bits) {
    return 0x0101010101010101ull * ((1u << bits) - 1u);
}
inline std::uint64_t gather_bits(std::uint64_t codes, int bits) {
    return _pext_u64(codes, spread_mask(bits));
}
inline std::uint64_t scatter_bits(std::uint64_t packed, int bits) {
    return _pdep_u64(packed, spread_mask(bits));
}
#else
inline std::uint64_t gather_bits(std::uint64_t codes, int bits) {
    std::uint64_t packed = 0;
    for (int j = 0; j < 8; ++j) packed |= (codes >> (8 * j) & 0xFFu) << (bits * j);
    return packed;
}
inline std::uint64_t scatter_bits(std::uint64_t packed, int bits) {
    const std::uint64_t mask = (1u << bits) - 1u;
    std::uint64_t codes = 0;
    for (int j = 0; j < 8; ++j) codes |= (packed >> (bits * j) & mask) << (8 * j);
    return codes;
}
#endif

// Eight bytes to and from a number, the first one lowest, whatever the machine's byte order.
inline std::uint64_t read_bytes(const std::uint8_t* from, int count) {
    std::uint64_t value = 0;
    for (int j = 0; j < count; ++j) value |= static_cast<std::uint64_t>(from[j]) << (8 * j);
    return value;
}
inline void write_bytes(std::uint64_t value, std::uint8_t* to, int count) {
    for (int j = 0; j < count; ++j) to[j] = static_cast<std::uint8_t>(value >> (8 * j));
}

// `codes` has room for the multiple of 8 above `count`.
inline void pack(std::uint8_t* codes, int bits, std::int64_t at, std::int64_t count,
                 std::uint8_t* packed) {
    std::uint8_t* to = packed + at * bits / 8;
    if (bits == 8) {
        __builtin_memcpy(to, codes, static_cast<std::size_t>(count));
        return;
    }
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8, to += bits)
        write_bytes(gather_bits(read_bytes(codes + i, 8), bits), to, bits);
    if (i < count) {
        const int rest = static_cast<int>(count - i);
        write_bytes(gather_bits(read_bytes(codes + i, rest), bits), to, (rest * bits + 7) / 8);
    }
}

inline void unpack(const std::uint8_t* packed, int bits, std::int64_t at, std::int64_t count,
                   std::uint8_t* codes) {
    const std::uint8_t* from = packed + at * bits / 8;
    if (bits == 8) {
        __builtin_memcpy(codes, from, static_cast<std::size_t>(count));
        return;
    }
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8, from += bits)
        write_bytes(scatter_bits(read_bytes(from, bits), bits), codes + i, 8);
    if (i < count) {
        const int rest = static_cast<int>(count - i);
        write_bytes(scatter_bits(read_bytes(from, (rest * bits + 7) / 8), bits), codes + i, rest);
    }
}
