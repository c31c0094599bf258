// What benchmarks measure to say how fast a step could be at best: divisions and square roots of
// `count` times 256 numbers in the nearest cache, 1.7 at first or close to it.
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
