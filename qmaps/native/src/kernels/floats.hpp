// Float bits, conversions, and the shared log2 and exp2, as plain loops that compilers vectorize.

inline std::uint32_t bits_of(float value) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float float_of(std::uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

constexpr std::uint32_t kInfinityBits = 0x7F800000u;
constexpr float kLargest = 3.402823466e+38f;

inline bool is_nan(float value) { return value != value; }

inline float from_bf16(std::uint16_t half) { return float_of(static_cast<std::uint32_t>(half) << 16); }

inline std::uint16_t to_bf16(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    return is_nan(value) ? 0x7FC0u : static_cast<std::uint16_t>(rounded);
}

inline float from_f16(std::uint16_t half) {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
    const std::uint32_t magnitude = half & 0x7FFFu;
    // Aligned with float32's fields, the exponent is 112 too small; a product puts that right,
    // subnormals included. Infinity and NaN need the largest exponent instead.
    const float scaled = float_of(magnitude << 13) * 5.192296858534828e+33f;  // 2^112
    const std::uint32_t special = magnitude >= 0x7C00u ? kInfinityBits : 0u;
    return float_of(bits_of(scaled) | special | sign);
}

inline std::uint16_t to_f16(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    std::uint32_t half;
    if (magnitude > kInfinityBits) {
        half = 0x7E00u;
    } else if (magnitude >= 0x47800000u) {  // 65536 and above, infinity
        half = 0x7C00u;
    } else if (magnitude < 0x38800000u) {  // below 2^-14: the sum's last place is 2^-24
        half = bits_of(float_of(magnitude) + 0.5f) - 0x3F000000u;
    } else {
        half = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
    }
    return static_cast<std::uint16_t>(half | sign);
}

// See qmaps._float32.log2: the same operations in the same order.
inline float log2_of(float x) {
    const bool tiny = x < 1.17549435e-38f;
    const std::uint32_t bits = bits_of(tiny ? x * 8388608.0f : x);
    std::int32_t exponent = static_cast<std::int32_t>(bits >> 23) - 126 - (tiny ? 23 : 0);
    float mantissa = float_of((bits & 0x007FFFFFu) | 0x3F000000u);
    const bool small = mantissa < 0.70710678f;
    mantissa = small ? mantissa * 2.0f : mantissa;
    exponent -= small ? 1 : 0;
    const float s = (mantissa - 1.0f) / (mantissa + 1.0f);
    const float z = s * s;
    float series = 0.32059889797532520f;
    series = series * z + 0.41219858311113244f;
    series = series * z + 0.5770780163555854f;
    series = series * z + 0.9617966939259756f;
    series = series * z + 2.8853900817779268f;
    const float result = static_cast<float>(exponent) + s * series;
    // Infinity and NaN give NaN.
    return bits >= kInfinityBits ? float_of(0x7FC00000u) : result;
}

inline float power_of_two(std::int32_t exponent) {
    return float_of(static_cast<std::uint32_t>(exponent + 127) << 23);
}

// See qmaps._float32.exp2.
inline float exp2_of(float y) {
    float bounded = is_nan(y) ? 0.0f : y;
    bounded = bounded < -250.0f ? -250.0f : bounded;
    bounded = bounded > 250.0f ? 250.0f : bounded;
    // Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even.
    const float k = (bounded + 12582912.0f) - 12582912.0f;
    const float f = y - k;
    float series = 0.000015252733804059841f;
    series = series * f + 0.00015403530393381608f;
    series = series * f + 0.0013333558146428443f;
    series = series * f + 0.009618129107628477f;
    series = series * f + 0.05550410866482158f;
    series = series * f + 0.2402265069591007f;
    series = series * f + 0.6931471805599453f;
    series = series * f + 1.0f;
    const std::int32_t whole = static_cast<std::int32_t>(k);
    const std::int32_t half = whole >> 1;
    return series * power_of_two(half) * power_of_two(whole - half);
}

inline void load(const void* from, Dtype dtype, std::int64_t at, std::int64_t count, float* to) {
    if (dtype == Dtype::f32) {
        __builtin_memcpy(to, static_cast<const float*>(from) + at, count * sizeof(float));
        return;
    }
    const std::uint16_t* half = static_cast<const std::uint16_t*>(from) + at;
    if (dtype == Dtype::bf16) {
        for (std::int64_t i = 0; i < count; ++i) to[i] = from_bf16(half[i]);
    } else {
        for (std::int64_t i = 0; i < count; ++i) to[i] = from_f16(half[i]);
    }
}

// The elements as floats: in place where they are, or in `scratch`.
inline const float* floats(const void* from, Dtype dtype, std::int64_t at, std::int64_t count,
                           float* scratch) {
    if (dtype == Dtype::f32) return static_cast<const float*>(from) + at;
    load(from, dtype, at, count, scratch);
    return scratch;
}

inline void store(const float* from, void* to, Dtype dtype, std::int64_t at, std::int64_t count) {
    if (dtype == Dtype::f32) {
        __builtin_memcpy(static_cast<float*>(to) + at, from, count * sizeof(float));
        return;
    }
    std::uint16_t* half = static_cast<std::uint16_t*>(to) + at;
    if (dtype == Dtype::bf16) {
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

// `count` floats and then as many others (null for none), over `turns` turns of 64 elements each.
inline Ahead ahead_of(const float* now, std::int64_t count, const float* then, int turns) {
    const std::int64_t lines = count / 16;
    const int units = (now ? 4 : 0) + (then ? 4 : 0);
    return {reinterpret_cast<const char*>(now), now ? lines : 0,
            reinterpret_cast<const char*>(then), then ? lines : 0, (units + turns - 1) / turns};
}
