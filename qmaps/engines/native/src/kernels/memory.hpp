// Reading and writing runs of elements, as plain loops that compilers vectorize.

#if defined(__F16C__)
// float16 by the processor's conversions; return how many were done.
inline std::int64_t load_f16(const std::uint16_t* from, std::int64_t count, float* to) {
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(
                                     reinterpret_cast<const __m128i*>(from + i))));
    return i;
}
inline std::int64_t store_f16(const float* from, std::int64_t count, std::uint16_t* to) {
    const __m256 sign = _mm256_set1_ps(-0.0f), quiet = _mm256_set1_ps(float_of(0x7FC00000u));
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const __m256 x = _mm256_loadu_ps(from + i);
        // Nothing of a NaN is kept but its sign.
        const __m256 nan = _mm256_or_ps(_mm256_and_ps(x, sign), quiet);
        const __m256 quieted = _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                         _mm256_cvtps_ph(quieted, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    return i;
}
#else
inline std::int64_t load_f16(const std::uint16_t*, std::int64_t, float*) { return 0; }
inline std::int64_t store_f16(const float*, std::int64_t, std::uint16_t*) { return 0; }
#endif

inline void load(const void* from, Dtype dtype, std::int64_t at, std::int64_t count, float* to) {
    if (dtype == Dtype::kFloat32) {
        __builtin_memcpy(to, static_cast<const float*>(from) + at, count * sizeof(float));
        return;
    }
    const std::uint16_t* half = static_cast<const std::uint16_t*>(from) + at;
    if (dtype == Dtype::kBfloat16) {
        for (std::int64_t i = 0; i < count; ++i) to[i] = from_bf16(half[i]);
    } else {
        for (std::int64_t i = load_f16(half, count, to); i < count; ++i) to[i] = from_f16(half[i]);
    }
}

// The elements as floats: in place where they are, or in `scratch`.
inline const float* floats(const void* from, Dtype dtype, std::int64_t at, std::int64_t count,
                           float* scratch) {
    if (dtype == Dtype::kFloat32) return static_cast<const float*>(from) + at;
    load(from, dtype, at, count, scratch);
    return scratch;
}

inline void store(const float* from, void* to, Dtype dtype, std::int64_t at, std::int64_t count) {
    if (dtype == Dtype::kFloat32) {
        __builtin_memcpy(static_cast<float*>(to) + at, from, count * sizeof(float));
        return;
    }
    std::uint16_t* half = static_cast<std::uint16_t*>(to) + at;
    if (dtype == Dtype::kBfloat16) {
        for (std::int64_t i = 0; i < count; ++i) half[i] = to_bf16(from[i]);
    } else {
        for (std::int64_t i = store_f16(from, count, half); i < count; ++i) half[i] = to_f16(from[i]);
    }
}

// Ask for the next few lines.
ALWAYS_INLINE inline void ask(Ahead& ahead, int lines) {
    for (int line = 0; line < lines; ++line) {
        if (ahead.lines == 0) {
            ahead.now = ahead.then;
            ahead.lines = ahead.later;
            ahead.later = 0;
            if (ahead.lines == 0) return;
        }
        __builtin_prefetch(ahead.now, 0, 2);
        ahead.now += 64;
        --ahead.lines;
    }
}

// Memory that is asked for: where it begins, and its whole cache lines.
struct Lines {
    const char* at = nullptr;
    std::int64_t count = 0;
};

inline Lines lines_of(const void* data, Dtype dtype, std::int64_t at, std::int64_t count) {
    const std::int64_t size = dtype == Dtype::kFloat32 ? 4 : 2;
    return {static_cast<const char*>(data) + at * size, count * size / 64};
}

// One and then the other, over `turns` turns of 64 elements each of `count`.
inline Ahead ahead_of(Lines now, Lines then, std::int64_t count, int turns) {
    const std::int64_t of_both = (now.count + then.count) * 64;
    return {now.at, now.count, then.at, then.count,
            static_cast<int>((of_both + turns * count - 1) / (turns * count))};
}
