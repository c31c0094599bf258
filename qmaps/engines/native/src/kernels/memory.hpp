// Reading and writing runs of elements, as plain loops that compilers vectorize.

inline void load(const void* from, Dtype dtype, std::int64_t at, std::int64_t count, float* to) {
    if (dtype == Dtype::kFloat32) {
        __builtin_memcpy(to, static_cast<const float*>(from) + at, count * sizeof(float));
        return;
    }
    const std::uint16_t* half = static_cast<const std::uint16_t*>(from) + at;
    if (dtype == Dtype::kBfloat16) {
        for (std::int64_t i = 0; i < count; ++i) to[i] = from_bf16(half[i]);
    } else {
        for (std::int64_t i = 0; i < count; ++i) to[i] = from_f16(half[i]);
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
        for (std::int64_t i = 0; i < count; ++i) half[i] = to_f16(from[i]);
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
    const std::int64_t each = (now.count + then.count) * 64;
    return {now.at, now.count, then.at, then.count,
            static_cast<int>((each + turns * count - 1) / (turns * count))};
}
