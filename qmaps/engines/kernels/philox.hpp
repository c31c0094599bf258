// Philox4x32-7; see qmaps.algebra.philox for the meaning of its words.

constexpr int kPhiloxRounds = 7;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;

// One instruction of GPUs, where the halves of a 64-bit product would be two.
QMAPS_INLINE std::uint64_t wide_product(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
    std::uint64_t product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
#else
    return static_cast<std::uint64_t>(a) * b;
#endif
}

QMAPS_INLINE void philox_round(std::uint32_t& c0, std::uint32_t& c1, std::uint32_t& c2,
                               std::uint32_t& c3, std::uint32_t k0, std::uint32_t k1) {
    const std::uint64_t left = wide_product(c0, 0xD2511F53u);
    const std::uint64_t right = wide_product(c2, 0xCD9E8D57u);
    const std::uint32_t second = c1, fourth = c3;
    c0 = static_cast<std::uint32_t>(right >> 32) ^ second ^ k0;
    c1 = static_cast<std::uint32_t>(right);
    c2 = static_cast<std::uint32_t>(left >> 32) ^ fourth ^ k1;
    c3 = static_cast<std::uint32_t>(left);
}

// Set in the second word of a key whose draws are spread over steps; then word 2 is where they begin.
constexpr std::uint32_t kSpread = 0x80000000u;
constexpr std::uint32_t kPerStep = 0x9E3779B9u, kPerElement = 0xC13FA9A9u;

// The draw of an element in its upper 16 bits.
QMAPS_INLINE std::uint32_t spread_word(std::uint32_t base, std::uint32_t step, std::uint32_t element) {
    return base + step * kPerStep + element * kPerElement;
}

// The bits of a draw that are turned round where the value is negative.
QMAPS_INLINE std::uint32_t mirror_of(std::uint32_t key1) { return key1 & kSpread ? 0xFFFFu : 0u; }

// Of 16 random bits, in (0, 1): (draw + 1/2) / 2^16, which is exact.
QMAPS_INLINE float uniform_of(std::uint32_t draw) {
    return float_of(0x43000000u | draw) - 127.99999237060546875f;  // 2^7 + draw / 2^16, less 2^7 - 2^-17
}
