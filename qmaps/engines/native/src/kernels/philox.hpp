// The random bits of stretches of elements: 16 for each, eight elements a block.

#if defined(__AVX512F__)

inline constexpr int kSets = 4;  // of eight blocks; enough at once to hide the products' latency
inline constexpr int kBlocks = 8 * kSets;

// Eight blocks side by side, a word in the lower half of each 64-bit lane. Upper halves hold
// what is left of products, which the next product does not read.
struct Eight {
    __m512i c0, c1, c2, c3;
};

ALWAYS_INLINE inline void philox_round(Eight& c, __m512i k0, __m512i k1) {
    const __m512i low_product = _mm512_mul_epu32(c.c0, _mm512_set1_epi64(0xD2511F53));
    const __m512i high_product = _mm512_mul_epu32(c.c2, _mm512_set1_epi64(0xCD9E8D57));
    c.c0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(high_product, 32), c.c1, k0, 0x96);
    c.c2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(low_product, 32), c.c3, k1, 0x96);
    c.c1 = high_product;
    c.c3 = low_product;
}

// The words of eight blocks, in order.
ALWAYS_INLINE inline void store_eight(const Eight& c, std::uint16_t* draws) {
    const __mmask16 odd = 0xAAAA;
    const __m512i c01 = _mm512_mask_shuffle_epi32(c.c0, odd, c.c1, _MM_PERM_CCAA);
    const __m512i c23 = _mm512_mask_shuffle_epi32(c.c2, odd, c.c3, _MM_PERM_CCAA);
    const __m512i low = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
    const __m512i high = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
    _mm512_storeu_si512(draws, _mm512_permutex2var_epi64(c01, low, c23));
    _mm512_storeu_si512(draws + 32, _mm512_permutex2var_epi64(c01, high, c23));
}

inline void draw_blocks(const NoiseKey& key, std::uint64_t block, std::uint16_t* draws) {
    Eight c[kSets];
    for (int s = 0; s < kSets; ++s) {
        const __m512i lane = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
        c[s].c0 = _mm512_add_epi64(
            _mm512_set1_epi64(static_cast<long long>(block + 8 * static_cast<unsigned>(s))), lane);
        c[s].c1 = _mm512_or_si512(_mm512_srli_epi64(c[s].c0, 32), _mm512_set1_epi64(key.word1));
        c[s].c2 = _mm512_set1_epi64(key.word2);
        c[s].c3 = _mm512_set1_epi64(key.word3);
    }
    std::uint32_t k0 = key.key0, k1 = key.key1;
    for (int round = 0; round < kPhiloxRounds; ++round) {
        const __m512i first = _mm512_set1_epi64(k0), second = _mm512_set1_epi64(k1);
        for (int s = 0; s < kSets; ++s) philox_round(c[s], first, second);
        k0 += kWeyl0;
        k1 += kWeyl1;
    }
    for (int s = 0; s < kSets; ++s) store_eight(c[s], draws + 64 * s);
}

#elif defined(__AVX2__)

inline constexpr int kSets = 4;  // of four blocks, as above of eight
inline constexpr int kBlocks = 4 * kSets;

struct Four {
    __m256i c0, c1, c2, c3;
};

ALWAYS_INLINE inline void philox_round(Four& c, __m256i k0, __m256i k1) {
    const __m256i low_product = _mm256_mul_epu32(c.c0, _mm256_set1_epi64x(0xD2511F53));
    const __m256i high_product = _mm256_mul_epu32(c.c2, _mm256_set1_epi64x(0xCD9E8D57));
    c.c0 = _mm256_xor_si256(_mm256_srli_epi64(high_product, 32), _mm256_xor_si256(c.c1, k0));
    c.c2 = _mm256_xor_si256(_mm256_srli_epi64(low_product, 32), _mm256_xor_si256(c.c3, k1));
    c.c1 = high_product;
    c.c3 = low_product;
}

ALWAYS_INLINE inline void store_four(const Four& c, std::uint16_t* draws) {
    const __m256i c01 = _mm256_blend_epi32(c.c0, _mm256_slli_epi64(c.c1, 32), 0xAA);
    const __m256i c23 = _mm256_blend_epi32(c.c2, _mm256_slli_epi64(c.c3, 32), 0xAA);
    const __m256i even = _mm256_unpacklo_epi64(c01, c23), odd = _mm256_unpackhi_epi64(c01, c23);
    auto* to = reinterpret_cast<__m256i*>(draws);
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
}

inline void draw_blocks(const NoiseKey& key, std::uint64_t block, std::uint16_t* draws) {
    Four c[kSets];
    for (int s = 0; s < kSets; ++s) {
        const auto first = static_cast<long long>(block + 4 * static_cast<unsigned>(s));
        c[s].c0 = _mm256_add_epi64(_mm256_set1_epi64x(first), _mm256_setr_epi64x(0, 1, 2, 3));
        c[s].c1 = _mm256_or_si256(_mm256_srli_epi64(c[s].c0, 32), _mm256_set1_epi64x(key.word1));
        c[s].c2 = _mm256_set1_epi64x(key.word2);
        c[s].c3 = _mm256_set1_epi64x(key.word3);
    }
    std::uint32_t k0 = key.key0, k1 = key.key1;
    for (int round = 0; round < kPhiloxRounds; ++round) {
        const __m256i first = _mm256_set1_epi64x(k0), second = _mm256_set1_epi64x(k1);
        for (int s = 0; s < kSets; ++s) philox_round(c[s], first, second);
        k0 += kWeyl0;
        k1 += kWeyl1;
    }
    for (int s = 0; s < kSets; ++s) store_four(c[s], draws + 32 * s);
}

#else

inline constexpr int kBlocks = 16;  // side by side, so that the rounds vectorize

inline void draw_blocks(const NoiseKey& key, std::uint64_t block, std::uint16_t* draws) {
    std::uint32_t c0[kBlocks], c1[kBlocks], c2[kBlocks], c3[kBlocks];
    for (int j = 0; j < kBlocks; ++j) {
        const std::uint64_t number = block + static_cast<std::uint64_t>(j);
        c0[j] = static_cast<std::uint32_t>(number);
        c1[j] = static_cast<std::uint32_t>(number >> 32) | key.word1;
        c2[j] = key.word2;
        c3[j] = key.word3;
    }
    std::uint32_t k0 = key.key0, k1 = key.key1;
    for (int round = 0; round < kPhiloxRounds; ++round) {
        for (int j = 0; j < kBlocks; ++j) philox_round(c0[j], c1[j], c2[j], c3[j], k0, k1);
        k0 += kWeyl0;
        k1 += kWeyl1;
    }
    // The low half of a word is the first of its two, as processors store it that we build for.
    for (int j = 0; j < kBlocks; ++j) {
        const std::uint32_t words[4] = {c0[j], c1[j], c2[j], c3[j]};
        __builtin_memcpy(draws + 8 * j, words, sizeof words);
    }
}

#endif

static_assert(8 * kBlocks <= kDrawsMore);

// Of an element, where draws are spread.
inline std::uint32_t spread_word_at(const NoiseKey& key, std::int64_t first) {
    const std::uint64_t index = key.offset + static_cast<std::uint64_t>(first);
    return spread_word(key.word2, key.word3, static_cast<std::uint32_t>(index));
}

// The 16 random bits of each of at most kTile elements from `first` on, in the scratch.
inline const std::uint16_t* draws_of(const NoiseKey& key, std::int64_t first, std::int64_t count,
                                     Scratch& scratch) {
    const std::uint64_t begin = key.offset + static_cast<std::uint64_t>(first);
    if (key.key1 & kSpread) {
        const std::uint32_t word = spread_word_at(key, first);
        for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(count); ++i)
            scratch.draws[i] = static_cast<std::uint16_t>((word + i * kPerElement) >> 16);
        return scratch.draws;
    }
    const auto skip = static_cast<std::int64_t>(begin % 8);
    for (std::int64_t done = 0; done < skip + count; done += 8 * kBlocks)
        draw_blocks(key, (begin + static_cast<std::uint64_t>(done)) / 8, scratch.draws + done);
    return scratch.draws + skip;
}

// Round codes of lower neighbours up by chance. Plain sums, so that the loop vectorizes.
template <class Code>
inline void raise(Code* codes, int last, const float* x, const float* low,
                  const float* high, const std::uint16_t* draws, std::uint32_t mirror,
                  std::int64_t count, float bend) {
    for (std::int64_t i = 0; i < count; ++i) {
        const int up = rounds_up(draws[i], mirror, x[i], low[i], high[i], bend) ? 1 : 0;
        const int below = codes[i] < last ? 1 : 0;
        codes[i] = static_cast<Code>(codes[i] + (up & below));
    }
}
