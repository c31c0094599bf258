// Codes of codebooks that hold the finite numbers of a 16-bit format, ascending: they are as far
// from the code of zero as the bits of the magnitude say, `most` at most. Plain sums of 16 bits, so
// that loops vectorize.

constexpr std::uint16_t kHalfSign = 0x8000u;

// Codes that the codebook does not have stand for its last value.
QMAPS_INLINE std::uint16_t half_of_code(std::uint16_t code, std::uint16_t zero, std::uint16_t most) {
    const auto last = static_cast<std::uint16_t>(zero + most);
    const std::uint16_t known = code < last ? code : last;
    const auto above = static_cast<std::uint16_t>(known - zero);
    const auto below = static_cast<std::uint16_t>(zero - known);
    return known < zero ? static_cast<std::uint16_t>(below | kHalfSign) : above;
}

// What lies beyond the codebook takes the code of its end.
QMAPS_INLINE std::uint16_t code_of_half(std::uint16_t half, std::uint16_t zero, std::uint16_t most) {
    const auto bits = static_cast<std::uint16_t>(half & (kHalfSign - 1));
    const std::uint16_t magnitude = bits < most ? bits : most;
    const std::uint16_t below = magnitude < zero ? magnitude : zero;
    return static_cast<std::uint16_t>(half & kHalfSign ? zero - below : zero + magnitude);
}
