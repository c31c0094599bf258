// Codes of any width to and from the packed stream; see qmaps.algebra.packing.
// `at` is a multiple of 8, so that it falls on a whole byte.

inline std::uint64_t gather_bits(std::uint64_t eight_codes, int bits);
inline std::uint64_t scatter_bits(std::uint64_t packed, int bits);

// Processors of AMD before Zen 3 take as long for pext and pdep as for a hundred other operations;
// none of them has AVX-512.
#if defined(__AVX512BW__)
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
inline std::uint64_t gather_bits(std::uint64_t codes, int bits) { return joined_bits(codes, bits); }
inline std::uint64_t scatter_bits(std::uint64_t packed, int bits) {
    return parted_bits(packed, bits);
}
#endif

// Bytes to and from a number, the first one lowest, whatever the machine's byte order.
inline std::uint64_t read_bytes(const std::uint8_t* from, int count) {
    std::uint64_t value = 0;
    for (int j = 0; j < count; ++j) value |= static_cast<std::uint64_t>(from[j]) << (8 * j);
    return value;
}
inline void write_bytes(std::uint64_t value, std::uint8_t* to, int count) {
    for (int j = 0; j < count; ++j) to[j] = static_cast<std::uint8_t>(value >> (8 * j));
}

// Whether numbers are stored like that. Compilers do not make one load of eight.
inline constexpr bool kAsStored = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;
inline std::uint64_t read_eight(const std::uint8_t* from) {
    if (!kAsStored) return read_bytes(from, 8);
    std::uint64_t value;
    __builtin_memcpy(&value, from, 8);
    return value;
}
inline void write_eight(std::uint64_t value, std::uint8_t* to) {
    if (!kAsStored) return write_bytes(value, to, 8);
    __builtin_memcpy(to, &value, 8);
}

#if defined(__AVX512BW__)
// Where the bytes of 8 codes lie in a lane of 64 bits, and where they lie packed.
struct Lanes64 {
    alignas(64) std::uint8_t packed[8][64], lanes[8][64];
    constexpr Lanes64() : packed{}, lanes{} {
        for (int bits = 1; bits < 8; ++bits) {
            for (int at = 0; at < 64; ++at) {
                packed[bits][at] = static_cast<std::uint8_t>((8 * (at / bits) + at % bits) & 63);
                lanes[bits][at] = static_cast<std::uint8_t>((bits * (at / 8) + at % 8) & 63);
            }
        }
    }
};
static constexpr Lanes64 kLanes64;

// 64 codes of at most 7 bits at a time; returns how many were done.
inline std::int64_t pack_lanes(const std::uint8_t* codes, int bits, std::int64_t count,
                               std::uint8_t* to) {
    const __m512i twos = _mm512_set1_epi16(static_cast<short>(1 | 256 << bits));
    const __m512i fours = _mm512_set1_epi32(1 | 65536 << 2 * bits);
    const __m512i low = _mm512_set1_epi64(0xFFFFFFFFll);
    const __m128i shift = _mm_cvtsi32_si128(4 * bits);
    const __m512i order = _mm512_load_si512(kLanes64.packed[bits]);
    const __mmask64 stored = (std::uint64_t{1} << 8 * bits) - 1u;
    std::int64_t i = 0;
    for (; i + 64 <= count; i += 64, to += 8 * bits) {
        const __m512i two = _mm512_maddubs_epi16(twos, _mm512_loadu_si512(codes + i));
        const __m512i four = _mm512_madd_epi16(two, fours);
        const __m512i above = _mm512_sll_epi64(_mm512_srli_epi64(four, 32), shift);
        const __m512i eight = _mm512_or_si512(_mm512_and_si512(four, low), above);
        _mm512_mask_storeu_epi8(to, stored, _mm512_permutexvar_epi8(order, eight));
    }
    return i;
}
inline std::int64_t unpack_lanes(const std::uint8_t* from, int bits, std::int64_t count,
                                 std::uint8_t* codes) {
    const __m512i order = _mm512_load_si512(kLanes64.lanes[bits]);
    const __m512i shifts = _mm512_set1_epi64(0x0706050403020100ll * bits);
    const __m512i mask = _mm512_set1_epi8(static_cast<char>((1 << bits) - 1));
    const __mmask64 read = (std::uint64_t{1} << 8 * bits) - 1u;
    std::int64_t i = 0;
    for (; i + 64 <= count; i += 64, from += 8 * bits) {
        const __m512i lanes =
            _mm512_permutexvar_epi8(order, _mm512_maskz_loadu_epi8(read, from));
        const __m512i code = _mm512_multishift_epi64_epi8(shifts, lanes);
        _mm512_storeu_si512(codes + i, _mm512_and_si512(code, mask));
    }
    return i;
}
// Half a byte a code.
inline std::int64_t pack_halves(const std::uint8_t* codes, std::int64_t count, std::uint8_t* to) {
    std::int64_t i = 0;
    for (; i + 64 <= count; i += 64) {
        const __m512i pairs = _mm512_loadu_si512(codes + i);
        const __m512i joined = _mm512_or_si512(pairs, _mm512_srli_epi16(pairs, 4));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i / 2), _mm512_cvtepi16_epi8(joined));
    }
    return i;
}
inline std::int64_t unpack_halves(const std::uint8_t* from, std::int64_t count,
                                  std::uint8_t* codes) {
    std::int64_t i = 0;
    for (; i + 64 <= count; i += 64) {
        const __m512i pairs = _mm512_cvtepu8_epi16(
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i / 2)));
        const __m512i split = _mm512_or_si512(pairs, _mm512_slli_epi16(pairs, 4));
        _mm512_storeu_si512(codes + i, _mm512_and_si512(split, _mm512_set1_epi8(15)));
    }
    return i;
}
#elif defined(__AVX2__)
// The same, 32 codes at a time.
inline std::int64_t pack_halves(const std::uint8_t* codes, std::int64_t count, std::uint8_t* to) {
    std::int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
        const __m256i joined = _mm256_and_si256(
            _mm256_or_si256(pairs, _mm256_srli_epi16(pairs, 4)), _mm256_set1_epi16(255));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i / 2),
                         _mm_packus_epi16(_mm256_castsi256_si128(joined),
                                          _mm256_extracti128_si256(joined, 1)));
    }
    return i;
}
inline std::int64_t unpack_halves(const std::uint8_t* from, std::int64_t count,
                                  std::uint8_t* codes) {
    std::int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        const __m256i pairs = _mm256_cvtepu8_epi16(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i / 2)));
        const __m256i split = _mm256_or_si256(pairs, _mm256_slli_epi16(pairs, 4));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i),
                            _mm256_and_si256(split, _mm256_set1_epi8(15)));
    }
    return i;
}
#elif defined(QMAPS_NEON)
#include "pack_neon.hpp"
#else
inline std::int64_t pack_halves(const std::uint8_t*, std::int64_t, std::uint8_t*) { return 0; }
inline std::int64_t unpack_halves(const std::uint8_t*, std::int64_t, std::uint8_t*) { return 0; }
#endif
#if defined(__AVX2__) && !defined(__AVX512BW__)
// Codes of at most 7 bits, 32 at a time, while 16 bytes can be read or written after the first half
// of them; returns how many were done.
inline bool holds_lanes(std::int64_t rest, int bits) { return rest * bits >= 8 * (16 + 2 * bits); }

// Where the bytes of 8 codes lie in a lane of 64 bits, and where they lie packed; -1 for none.
struct Lanes64 {
    alignas(32) std::int8_t packed[8][32], lanes[8][32];
    constexpr Lanes64() : packed{}, lanes{} {
        for (int bits = 1; bits < 8; ++bits) {
            for (int at = 0; at < 32; ++at) {
                const int j = at % 16;
                packed[bits][at] = static_cast<std::int8_t>(
                    j < 2 * bits ? 8 * (j / bits) + j % bits : -1);
                lanes[bits][at] =
                    static_cast<std::int8_t>(j % 8 < bits ? bits * (j / 8) + j % 8 : -1);
            }
        }
    }
};
static constexpr Lanes64 kLanes64;

inline std::int64_t pack_lanes(const std::uint8_t* codes, int bits, std::int64_t count,
                               std::uint8_t* to) {
    const __m256i twos = _mm256_set1_epi16(static_cast<short>(1 | 256 << bits));
    const __m256i fours = _mm256_set1_epi32(1 | 65536 << 2 * bits);
    const __m256i low = _mm256_set1_epi64x(0xFFFFFFFFll);
    const __m128i shift = _mm_cvtsi32_si128(4 * bits);
    const __m256i order = _mm256_load_si256(reinterpret_cast<const __m256i*>(kLanes64.packed[bits]));
    std::int64_t i = 0;
    for (; i + 32 <= count && holds_lanes(count - i, bits); i += 32, to += 4 * bits) {
        const __m256i some = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
        const __m256i four = _mm256_madd_epi16(_mm256_maddubs_epi16(twos, some), fours);
        const __m256i above = _mm256_sll_epi64(_mm256_srli_epi64(four, 32), shift);
        const __m256i eight = _mm256_or_si256(_mm256_and_si256(four, low), above);
        const __m256i packed = _mm256_shuffle_epi8(eight, order);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 2 * bits),
                         _mm256_extracti128_si256(packed, 1));
    }
    return i;
}
inline std::int64_t unpack_lanes(const std::uint8_t* from, int bits, std::int64_t count,
                                 std::uint8_t* codes) {
    const auto low = [](int kept) { return static_cast<long long>((std::uint64_t{1} << kept) - 1u); };
    const __m256i fours = _mm256_set1_epi64x(low(4 * bits));
    const __m256i twos = _mm256_set1_epi32(static_cast<int>(low(2 * bits)));
    const __m256i ones = _mm256_set1_epi16(static_cast<short>(low(bits)));
    const __m128i by_four = _mm_cvtsi32_si128(4 * bits), by_two = _mm_cvtsi32_si128(2 * bits);
    const __m128i by_one = _mm_cvtsi32_si128(bits);
    const __m256i order = _mm256_load_si256(reinterpret_cast<const __m256i*>(kLanes64.lanes[bits]));
    std::int64_t i = 0;
    for (; i + 32 <= count && holds_lanes(count - i, bits); i += 32, from += 4 * bits) {
        const __m256i packed = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))),
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * bits)), 1);
        const __m256i eight = _mm256_shuffle_epi8(packed, order);
        const __m256i four = _mm256_or_si256(
            _mm256_and_si256(eight, fours), _mm256_slli_epi64(_mm256_srl_epi64(eight, by_four), 32));
        const __m256i two = _mm256_or_si256(
            _mm256_and_si256(four, twos), _mm256_slli_epi32(_mm256_srl_epi32(four, by_two), 16));
        const __m256i one = _mm256_or_si256(
            _mm256_and_si256(two, ones), _mm256_slli_epi16(_mm256_srl_epi16(two, by_one), 8));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i), one);
    }
    return i;
}
#elif !defined(__AVX512BW__) && !defined(QMAPS_NEON)
inline std::int64_t pack_lanes(const std::uint8_t*, int, std::int64_t, std::uint8_t*) { return 0; }
inline std::int64_t unpack_lanes(const std::uint8_t*, int, std::int64_t, std::uint8_t*) { return 0; }
#endif

// `codes` has room for the multiple of 8 above `count`.
inline void pack(std::uint8_t* codes, int bits, std::int64_t at, std::int64_t count,
                 std::uint8_t* packed) {
    std::uint8_t* to = packed + at * bits / 8;
    if (bits == 8) {
        __builtin_memcpy(to, codes, static_cast<std::size_t>(count));
        return;
    }
    std::int64_t i = bits == 4 ? pack_halves(codes, count, to) : pack_lanes(codes, bits, count, to);
    to += i * bits / 8;
    // What is written too much the next codes replace.
    for (; (count - i) * bits >= 64; i += 8, to += bits)
        write_eight(gather_bits(read_eight(codes + i), bits), to);
    for (; i + 8 <= count; i += 8, to += bits)
        write_bytes(gather_bits(read_eight(codes + i), bits), to, bits);
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
    std::int64_t i = bits == 4 ? unpack_halves(from, count, codes) : unpack_lanes(from, bits, count, codes);
    from += i * bits / 8;
    // Of what is read the lowest 8 * bits bits count.
    for (; (count - i) * bits >= 64; i += 8, from += bits)
        write_eight(scatter_bits(read_eight(from), bits), codes + i);
    for (; i + 8 <= count; i += 8, from += bits)
        write_eight(scatter_bits(read_bytes(from, bits), bits), codes + i);
    if (i < count) {
        const int rest = static_cast<int>(count - i);
        write_bytes(scatter_bits(read_bytes(from, (rest * bits + 7) / 8), bits), codes + i, rest);
    }
}
