// Float bits, conversions, roots, and the shared log2 and exp2.

QMAPS_INLINE std::uint32_t bits_of(float value) {
#if defined(__CUDA_ARCH__)
    return __float_as_uint(value);
#else
    std::uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
#endif
}

QMAPS_INLINE float float_of(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
    return __uint_as_float(bits);
#else
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
#endif
}

constexpr std::uint32_t kInfinityBits = 0x7F800000u;
constexpr float kLargest = 3.402823466e+38f;

// Correctly rounded.
QMAPS_INLINE float root_of(float value) {
#if defined(__CUDA_ARCH__)
    return __fsqrt_rn(value);
#else
    return __builtin_sqrtf(value);
#endif
}

QMAPS_INLINE double double_root_of(double value) {
#if defined(__CUDA_ARCH__)
    return __dsqrt_rn(value);
#else
    return __builtin_sqrt(value);
#endif
}

// One product and sum, rounded once.
QMAPS_INLINE float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
    return __fmaf_rn(a, b, c);
#else
    return __builtin_fmaf(a, b, c);
#endif
}

// A number to divide many others by. Where QMAPS_BY_PRODUCTS is set, as for GPUs, that takes four
// operations each, and has the bits of a division all the same: `high + low` is 1 / d to twice the
// precision, so that the first quotient is off by less than one unit in the last place; its
// remainder is exact, and then one more step rounds correctly (Markstein 1990). That needs x = 0 or
// |x| >= 2^-100, |x / d| from 2^-126 to 2^100, and d from 2^-100 to 2^26.
struct Divisor {
    float d;
#if defined(QMAPS_BY_PRODUCTS)
    float high, low;
    QMAPS_INLINE explicit Divisor(float divisor)
        : d(divisor), high(1.0f / divisor), low(fused(-high, divisor, 1.0f) * high) {}
    QMAPS_INLINE float under(float x) const {
        const float first = fused(x, high, x * low);
        return fused(fused(-first, d, x), high, first);
    }
#else
    QMAPS_INLINE explicit Divisor(float divisor) : d(divisor) {}
    QMAPS_INLINE float under(float x) const { return x / d; }
#endif
};

QMAPS_INLINE bool is_nan(float value) { return value != value; }

QMAPS_INLINE float from_bf16(std::uint16_t half) { return float_of(static_cast<std::uint32_t>(half) << 16); }

QMAPS_INLINE std::uint16_t to_bf16(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    return is_nan(value) ? 0x7FC0u : static_cast<std::uint16_t>(rounded);
}

// Rounded up with the chance that the bits below say, by 16 random bits; infinity and NaN as ever.
QMAPS_INLINE std::uint16_t to_bf16_stochastic(float value, std::uint32_t draw) {
    // Infinity has no bits below, so that no draw changes it.
    return is_nan(value) ? 0x7FC0u : static_cast<std::uint16_t>((bits_of(value) + draw) >> 16);
}

QMAPS_INLINE float from_f16(std::uint16_t half) {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
    const std::uint32_t magnitude = half & 0x7FFFu;
    // Aligned with float32's fields, the exponent is 112 too small; a product puts that right,
    // subnormals included. Infinity and NaN need the largest exponent instead.
    const float scaled = float_of(magnitude << 13) * 5.192296858534828e+33f;  // 2^112
    const std::uint32_t special = magnitude >= 0x7C00u ? kInfinityBits : 0u;
    const std::uint32_t quiet = magnitude > 0x7C00u ? 0x00400000u : 0u;  // as processors have NaN
    return float_of(bits_of(scaled) | special | quiet | sign);
}

QMAPS_INLINE std::uint16_t to_f16(float value) {
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

// See qmaps.float32.log2: the same operations in the same order.
QMAPS_INLINE float log2_of(float x) {
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
    // Infinity, NaN and what is below 0 give NaN.
    return bits >= kInfinityBits ? float_of(0x7FC00000u) : result;
}

QMAPS_INLINE float power_of_two(std::int32_t exponent) {
    return float_of(static_cast<std::uint32_t>(exponent + 127) << 23);
}

// See qmaps.float32.exp2.
QMAPS_INLINE float exp2_of(float y) {
    float bounded = y < -250.0f ? -250.0f : y;
    bounded = bounded > 250.0f ? 250.0f : bounded;
    // Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even.
    const float k = is_nan(y) ? 0.0f : (bounded + 12582912.0f) - 12582912.0f;
    const float f = bounded - k;
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
