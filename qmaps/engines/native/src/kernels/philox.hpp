// The random words of stretches of elements.

#if defined(__AVX512F__)

// Eight groups side by side, a word in the lower half of each 64-bit lane. Upper halves hold
// what is left of products, which the next product does not read.
struct Eight {
    __m512i c0, c1, c2, c3;
};

inline void philox_round(Eight& c, __m512i k0, __m512i k1) {
    const __m512i left = _mm512_mul_epu32(c.c0, _mm512_set1_epi64(0xD2511F53));
    const __m512i right = _mm512_mul_epu32(c.c2, _mm512_set1_epi64(0xCD9E8D57));
    c.c0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(right, 32), c.c1, k0, 0x96);
    c.c2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(left, 32), c.c3, k1, 0x96);
    c.c1 = right;
    c.c3 = left;
}

// Words of eight groups, in order.
inline void store_eight(const Eight& c, std::uint32_t* words) {
    const __mmask16 odd = 0xAAAA;
    const __m512i c01 = _mm512_mask_blend_epi32(odd, c.c0, _mm512_slli_epi64(c.c1, 32));
    const __m512i c23 = _mm512_mask_blend_epi32(odd, c.c2, _mm512_slli_epi64(c.c3, 32));
    const __m512i even_groups = _mm512_unpacklo_epi64(c01, c23);
    const __m512i odd_groups = _mm512_unpackhi_epi64(c01, c23);
    const __m512i low = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
    const __m512i high = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    _mm512_storeu_si512(words, _mm512_permutex2var_epi64(even_groups, low, odd_groups));
    _mm512_storeu_si512(words + 16, _mm512_permutex2var_epi64(even_groups, high, odd_groups));
}

// Words of whole groups of four; returns how many elements were done.
inline std::int64_t random_groups(const NoiseKey& key, std::uint64_t group, std::int64_t count,
                                  std::uint32_t* words) {
    constexpr int kSets = 4;  // enough at once to hide the products' latency
    std::int64_t done = 0;
    for (; done + 32 * kSets <= count; done += 32 * kSets, group += 8 * kSets) {
        // The upper bits of the group number change once in 2^32 groups.
        if ((group >> 32) != ((group + 8 * kSets - 1) >> 32)) break;
        Eight c[kSets];
        for (int s = 0; s < kSets; ++s) {
            const __m512i lane = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
            c[s].c0 = _mm512_add_epi64(
                _mm512_set1_epi64(static_cast<long long>(group + 8 * static_cast<unsigned>(s))),
                lane);
            c[s].c1 = _mm512_set1_epi64(static_cast<std::uint32_t>(group >> 32) | key.word1);
            c[s].c2 = _mm512_set1_epi64(key.word2);
            c[s].c3 = _mm512_set1_epi64(key.word3);
        }
        std::uint32_t k0 = key.key0, k1 = key.key1;
        for (int round = 0; round < 10; ++round) {
            const __m512i first = _mm512_set1_epi64(k0), second = _mm512_set1_epi64(k1);
            for (int s = 0; s < kSets; ++s) philox_round(c[s], first, second);
            k0 += kWeyl0;
            k1 += kWeyl1;
        }
        for (int s = 0; s < kSets; ++s) store_eight(c[s], words + done + 32 * s);
    }
    return done;
}

#else

inline std::int64_t random_groups(const NoiseKey&, std::uint64_t, std::int64_t, std::uint32_t*) {
    return 0;
}

#endif

// The words of elements [first, first + count) of a tensor.
inline void random_words(const NoiseKey& key, std::int64_t first, std::int64_t count,
                         std::uint32_t* words) {
    constexpr int kGroups = 16;  // side by side, so that the rounds vectorize
    const std::uint64_t begin = key.offset + static_cast<std::uint64_t>(first);
    std::uint64_t group = begin / 4;
    std::int64_t skip = static_cast<std::int64_t>(begin % 4);
    std::int64_t done = 0;
    if (skip == 0) {
        done = random_groups(key, group, count, words);
        group += static_cast<std::uint64_t>(done) / 4;
    }
    while (done < count) {
        std::uint32_t c0[kGroups], c1[kGroups], c2[kGroups], c3[kGroups];
        for (int j = 0; j < kGroups; ++j) {
            const std::uint64_t number = group + static_cast<std::uint64_t>(j);
            c0[j] = static_cast<std::uint32_t>(number);
            c1[j] = static_cast<std::uint32_t>(number >> 32) | key.word1;
            c2[j] = key.word2;
            c3[j] = key.word3;
        }
        std::uint32_t k0 = key.key0, k1 = key.key1;
        for (int round = 0; round < 10; ++round) {
            for (int j = 0; j < kGroups; ++j) {
                philox_round(c0[j], c1[j], c2[j], c3[j], k0, k1);
            }
            k0 += kWeyl0;
            k1 += kWeyl1;
        }
        if (skip == 0 && count - done >= 4 * kGroups) {
            for (int j = 0; j < kGroups; ++j) {
                words[done + 4 * j] = c0[j];
                words[done + 4 * j + 1] = c1[j];
                words[done + 4 * j + 2] = c2[j];
                words[done + 4 * j + 3] = c3[j];
            }
            done += 4 * kGroups;
        } else {
            for (int j = 0; j < kGroups && done < count; ++j) {
                const std::uint32_t four[4] = {c0[j], c1[j], c2[j], c3[j]};
                for (int w = 0; w < 4 && done < count; ++w) {
                    if (skip > 0) {
                        --skip;
                    } else {
                        words[done++] = four[w];
                    }
                }
            }
        }
        group += kGroups;
    }
}
