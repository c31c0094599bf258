// Eight codes of a byte each, to and from codes without gaps; see qmaps.algebra.packing. The first code and
// the first byte lie lowest.

QMAPS_INLINE std::uint64_t joined_bits(std::uint64_t codes, int bits) {
    std::uint64_t packed = 0;
    for (int j = 0; j < 8; ++j) packed |= (codes >> (8 * j) & 0xFFu) << (bits * j);
    return packed;
}

QMAPS_INLINE std::uint64_t parted_bits(std::uint64_t packed, int bits) {
    const std::uint64_t mask = (1u << bits) - 1u;
    std::uint64_t codes = 0;
    for (int j = 0; j < 8; ++j) codes |= (packed >> (bits * j) & mask) << (8 * j);
    return codes;
}
