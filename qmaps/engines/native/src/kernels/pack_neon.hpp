// Codes to and from the packed stream with NEON, 16 at a time; each returns how many were done.

// As long as 16 bytes can be read or written.
inline std::int64_t groups_of(std::int64_t count, int bits) {
    return count * bits < 128 || count < 16 ? 0 : (count * bits - 128) / (16 * bits) + 1;
}

// Where the bytes of 8 codes lie in a lane of 64 bits, packed; 255 for none. And the two bytes that each
// code of 16 lies in, and how far up it lies there.
struct Lanes64 {
    alignas(16) std::uint8_t packed[8][16], pairs[8][2][16];
    alignas(16) std::int16_t up[8][8];
    constexpr Lanes64() : packed{}, pairs{}, up{} {
        for (int bits = 1; bits < 8; ++bits) {
            for (int j = 0; j < 16; ++j) {
                packed[bits][j] = static_cast<std::uint8_t>(j < 2 * bits ? 8 * (j / bits) + j % bits : 255);
                const int byte = j * bits / 8;
                pairs[bits][j / 8][2 * (j % 8)] = static_cast<std::uint8_t>(byte);
                pairs[bits][j / 8][2 * (j % 8) + 1] = static_cast<std::uint8_t>(byte + 1);
            }
            for (int j = 0; j < 8; ++j) up[bits][j] = static_cast<std::int16_t>(-(j * bits % 8));
        }
    }
};
static constexpr Lanes64 kLanes64;

// Codes of at most 7 bits. What is written too much the next codes replace.
inline std::int64_t pack_lanes(const std::uint8_t* codes, int bits, std::int64_t count,
                               std::uint8_t* to) {
    // Neighbours come together: the upper one's place is so much lower.
    const uint16x8_t twos = vdupq_n_u16(static_cast<std::uint16_t>(256 - (1 << bits)));
    const uint32x4_t fours = vdupq_n_u32(65536u - (1u << 2 * bits));
    const int64x2_t down = vdupq_n_s64(4 * bits - 32);
    const uint64x2_t low = vdupq_n_u64((std::uint64_t{1} << 4 * bits) - 1u);
    const uint8x16_t order = vld1q_u8(kLanes64.packed[bits]);
    const std::int64_t all = groups_of(count, bits);
    for (std::int64_t groups = all; groups > 0; --groups, codes += 16, to += 2 * bits) {
        const uint16x8_t one = vreinterpretq_u16_u8(vld1q_u8(codes));
        const uint32x4_t two = vreinterpretq_u32_u16(vmlsq_u16(one, vshrq_n_u16(one, 8), twos));
        const uint64x2_t four = vreinterpretq_u64_u32(vmlsq_u32(two, vshrq_n_u32(two, 16), fours));
        const uint64x2_t eight = vbslq_u64(low, four, vshlq_u64(four, down));
        vst1q_u8(to, vqtbl1q_u8(vreinterpretq_u8_u64(eight), order));
    }
    return 16 * all;
}

inline std::int64_t unpack_lanes(const std::uint8_t* from, int bits, std::int64_t count,
                                 std::uint8_t* codes) {
    const uint8x16_t pairs[2] = {vld1q_u8(kLanes64.pairs[bits][0]), vld1q_u8(kLanes64.pairs[bits][1])};
    const int16x8_t up = vld1q_s16(kLanes64.up[bits]);
    const uint8x16_t mask = vdupq_n_u8(static_cast<std::uint8_t>((1 << bits) - 1));
    const std::int64_t all = groups_of(count, bits);
    for (std::int64_t groups = all; groups > 0; --groups, codes += 16, from += 2 * bits) {
        const uint8x16_t packed = vld1q_u8(from);
        const auto eight = [&](int half) ALWAYS_INLINE {
            return vreinterpretq_u8_u16(
                vshlq_u16(vreinterpretq_u16_u8(vqtbl1q_u8(packed, pairs[half])), up));
        };
        vst1q_u8(codes, vandq_u8(vuzp1q_u8(eight(0), eight(1)), mask));
    }
    return 16 * all;
}

// Half a byte a code.
inline std::int64_t pack_halves(const std::uint8_t* codes, std::int64_t count, std::uint8_t* to) {
    std::int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        const uint8x16x2_t pairs = vld2q_u8(codes + i);
        vst1q_u8(to + i / 2, vsliq_n_u8(pairs.val[0], pairs.val[1], 4));
    }
    return i;
}

inline std::int64_t unpack_halves(const std::uint8_t* from, std::int64_t count,
                                  std::uint8_t* codes) {
    std::int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        const uint8x16_t pairs = vld1q_u8(from + i / 2);
        const uint8x16_t low = vandq_u8(pairs, vdupq_n_u8(15)), high = vshrq_n_u8(pairs, 4);
        vst1q_u8(codes + i, vzip1q_u8(low, high));
        vst1q_u8(codes + i + 16, vzip2q_u8(low, high));
    }
    return i;
}
