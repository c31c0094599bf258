// Tables in registers, 64 elements at a time: byte and word permutes look them up.
//
// Needs F, BW, DQ, VL, VBMI, BITALG and GFNI.

// Byte 16 l + 4 q + k of the strided order is element 16 q + 4 l + k: that is how packing four
// registers of 32-bit numbers into bytes, lane by lane, leaves them.
struct alignas(64) Orders {
    std::uint16_t upper[32];     // upper halves of 32 floats in two registers, for packing
    std::uint8_t odd_bytes[64];  // upper bytes of 64 words in two registers, as packing has them
    std::uint16_t up_to[32];     // bits 0 to i, modulo 16
    std::uint8_t strided[64];    // bytes into the strided order
    std::uint8_t natural[64];    // and back
    std::uint8_t quarters[64];   // from strided: byte q of number j is element 16 q + j
    std::uint8_t halves[4][64];  // to byte 4 j the byte that holds element 16 q + j of 4 bits each
    constexpr Orders() : upper(), odd_bytes(), up_to(), strided(), natural(), quarters(), halves() {
        for (int i = 0; i < 32; ++i) {
            const int lane = i / 8, j = i % 8;
            upper[i] = static_cast<std::uint16_t>(2 * (4 * lane + j % 4) + 1 + (j < 4 ? 0 : 32));
            up_to[i] = static_cast<std::uint16_t>((2u << (i % 16)) - 1u);
        }
        for (int i = 0; i < 64; ++i) {
            const int lane = i / 16, j = i % 16;
            odd_bytes[i] = static_cast<std::uint8_t>(16 * lane + 2 * (j % 8) + 1 + (j < 8 ? 0 : 64));
            for (int q = 0; q < 4; ++q) halves[q][i] = static_cast<std::uint8_t>((16 * q + i / 4) / 2);
        }
        for (int lane = 0; lane < 4; ++lane)
            for (int q = 0; q < 4; ++q)
                for (int k = 0; k < 4; ++k) {
                    const int element = 16 * q + 4 * lane + k, byte = 16 * lane + 4 * q + k;
                    strided[byte] = static_cast<std::uint8_t>(element);
                    natural[element] = static_cast<std::uint8_t>(byte);
                    quarters[16 * lane + 4 * k + q] = static_cast<std::uint8_t>(byte);
                }
    }
};
inline constexpr Orders kOrders;

// 256 bytes by their index. Members by name: compilers keep arrays of registers in memory.
//
// `kShuffles`, here and below, is how many permutes and packs of whole registers 64 elements take;
// see encode_shuffles.
struct Table {
    static constexpr int kShuffles = 2;
    __m512i first, second, third, fourth;
    ALWAYS_INLINE explicit Table(const std::uint8_t* bytes)
        : first(_mm512_load_si512(bytes)), second(_mm512_load_si512(bytes + 64)),
          third(_mm512_load_si512(bytes + 128)), fourth(_mm512_load_si512(bytes + 192)) {}
    // `upper`: the indices from 128 on.
    ALWAYS_INLINE __m512i at(__m512i index, __mmask64 upper) const {
        const __m512i low = _mm512_permutex2var_epi8(first, index, second);
        const __m512i high = _mm512_permutex2var_epi8(third, index, fourth);
        return _mm512_mask_blend_epi8(upper, low, high);
    }
};

// 256 floats by their index, a table for each of their bytes.
struct Planes {
    static constexpr int kShuffles = 4 * Table::kShuffles;
    static constexpr int kNeighbourShuffles = 2 * kShuffles;
    Table byte0, byte1, byte2, byte3;
    ALWAYS_INLINE explicit Planes(const std::uint8_t (*bytes)[kMaxCodes])
        : byte0(bytes[0]), byte1(bytes[1]), byte2(bytes[2]), byte3(bytes[3]) {}
    // The floats at 64 strided indices, in natural order.
    ALWAYS_INLINE void floats(__m512i strided, __m512 (&out)[4]) const {
        const __mmask64 upper = _mm512_movepi8_mask(strided);
        const __m512i b0 = byte0.at(strided, upper), b1 = byte1.at(strided, upper);
        const __m512i b2 = byte2.at(strided, upper), b3 = byte3.at(strided, upper);
        const __m512i low01 = _mm512_unpacklo_epi8(b0, b1), high01 = _mm512_unpackhi_epi8(b0, b1);
        const __m512i low23 = _mm512_unpacklo_epi8(b2, b3), high23 = _mm512_unpackhi_epi8(b2, b3);
        out[0] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(low01, low23));
        out[1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(low01, low23));
        out[2] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(high01, high23));
        out[3] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(high01, high23));
    }
    // Also those after them, but for the last.
    ALWAYS_INLINE void neighbours(__m512i strided, __m512 (&out)[4], __m512 (&next)[4]) const {
        floats(strided, out);
        floats(_mm512_add_epi8(strided, _mm512_set1_epi8(1)), next);
    }
};

// 32 floats by their index.
struct Few {
    static constexpr int kShuffles = 1 + 4;
    static constexpr int kNeighbourShuffles = 1 + 8;
    __m512 low, high;
    ALWAYS_INLINE explicit Few(const float* values)
        : low(_mm512_loadu_ps(values)), high(_mm512_loadu_ps(values + 16)) {}
    ALWAYS_INLINE void floats(__m512i strided, __m512 (&out)[4]) const {
        const __m512i bytes =
            _mm512_permutexvar_epi8(_mm512_load_si512(kOrders.quarters), strided);
        // The permutes look at an index's lower bits alone.
        out[0] = _mm512_permutex2var_ps(low, bytes, high);
        out[1] = _mm512_permutex2var_ps(low, _mm512_srli_epi32(bytes, 8), high);
        out[2] = _mm512_permutex2var_ps(low, _mm512_srli_epi32(bytes, 16), high);
        out[3] = _mm512_permutex2var_ps(low, _mm512_srli_epi32(bytes, 24), high);
    }
    // Also those after them, but for the last.
    ALWAYS_INLINE void neighbours(__m512i strided, __m512 (&out)[4], __m512 (&next)[4]) const {
        Few after = *this;
        after.low = _mm512_castsi512_ps(_mm512_alignr_epi32(_mm512_castps_si512(high),
                                                            _mm512_castps_si512(low), 1));
        after.high = _mm512_castsi512_ps(_mm512_alignr_epi32(_mm512_castps_si512(high),
                                                             _mm512_castps_si512(high), 1));
        floats(strided, out);
        after.floats(strided, next);
    }
};

// 16 floats, or as many as there are, and then zeros.
template <bool whole>
ALWAYS_INLINE inline __m512 load_some(const float* from, std::int64_t count) {
    if constexpr (whole) return _mm512_loadu_ps(from);
    if (count >= 16) return _mm512_loadu_ps(from);
    return _mm512_maskz_loadu_ps(count <= 0 ? 0 : static_cast<__mmask16>((1u << count) - 1u), from);
}

template <bool whole>
ALWAYS_INLINE inline void store_some(float* to, std::int64_t count, __m512 value) {
    if (whole || count >= 16) {
        _mm512_storeu_ps(to, value);
    } else if (count > 0) {
        _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1u), value);
    }
}

// Call group<whole>(first) for every 64 of `count` elements; the last may not be whole.
template <class Group>
ALWAYS_INLINE inline void in_groups(std::int64_t count, const Group& group) {
    std::int64_t i = 0;
    for (; i + 64 <= count; i += 64) group.template operator()<true>(i);
    if (i < count) group.template operator()<false>(i);
}

// Stores past the caches, for whole lines; others are stored as usual.
inline constexpr bool kStreams = true;
inline bool is_line(const void* to) { return reinterpret_cast<std::uintptr_t>(to) % 64 == 0; }

inline void stream(const float* from, float* to, std::int64_t count) {
    std::int64_t i = 0;
    if (is_line(to))
        for (; i + 16 <= count; i += 16) _mm512_stream_ps(to + i, _mm512_loadu_ps(from + i));
    for (; i < count; ++i) to[i] = from[i];
}

// What was streamed is there before anything that follows.
inline void finish_streams() { _mm_sfence(); }
