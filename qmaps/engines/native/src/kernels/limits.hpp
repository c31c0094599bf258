// What benchmarks measure to say how fast work could be at best: divisions and square roots of
// `count` times 256 numbers in the nearest cache, 1.7 at first or close to it; and `count` times
// 256 permutes of registers.
inline constexpr int kNumbers = 256;

// The compiler must believe that all of `x` is read and written here.
ALWAYS_INLINE inline void in_memory(float* x) { asm volatile("" : : "r"(x) : "memory"); }

inline void divisions(std::int64_t count) {
    alignas(64) float x[kNumbers];
    for (int i = 0; i < kNumbers; ++i) x[i] = 1.7f + static_cast<float>(i) / kNumbers;
    for (std::int64_t n = 0; n < count; ++n) {
        in_memory(x);
        for (int i = 0; i < kNumbers; ++i) x[i] = 1.7f / x[i];
    }
    in_memory(x);
}

inline void roots(std::int64_t count) {
    alignas(64) float x[kNumbers];
    for (int i = 0; i < kNumbers; ++i) x[i] = 1.7f + static_cast<float>(i) / kNumbers;
    for (std::int64_t n = 0; n < count; ++n) {
        in_memory(x);
        for (int i = 0; i < kNumbers; ++i) x[i] = root_of(x[i]);
    }
    in_memory(x);
}

// Permutes of the bytes of two registers. Returns whether the codecs of this instruction set look
// up by such; without, nothing is done.
inline bool shuffles(std::int64_t count) {
#if defined(__AVX512VBMI__)
    constexpr int kChains = 8;  // at once, to hide a permute's latency
    const __m512i first = _mm512_load_si512(kOrders.natural);
    const __m512i second = _mm512_load_si512(kOrders.strided);
    __m512i index[kChains];
    for (int k = 0; k < kChains; ++k) index[k] = _mm512_set1_epi8(static_cast<char>(k));
    for (std::int64_t n = 0; n < count * (kNumbers / kChains); ++n)
        for (int k = 0; k < kChains; ++k) {
            index[k] = _mm512_permutex2var_epi8(first, index[k], second);
            asm volatile("" : "+v"(index[k]));
        }
    return true;
#else
    (void)count;
    return false;
#endif
}
