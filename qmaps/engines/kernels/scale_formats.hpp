// Scales that are stored in other formats than float32.

// See qmaps.normalize.e4m3.
QMAPS_INLINE float from_e4m3(std::uint32_t code) {
    const std::uint32_t magnitude = code & 0x7Fu;
    // Aligned with float32's fields, the exponent is 120 too small.
    const float value = float_of(magnitude << 20) * 1.329227995784916e+36f;  // 2^120
    return magnitude == 0x7Fu ? float_of(0x7FC00000u) : value;
}

// Of magnitudes up to 448, and NaN; ties to even.
QMAPS_INLINE std::uint8_t to_e4m3(float value) {
    const std::uint32_t magnitude = bits_of(value) & 0x7FFFFFFFu;
    std::uint32_t code;
    if (magnitude > kInfinityBits) {
        code = 0x7Fu;
    } else if (magnitude < 0x3C800000u) {  // below 2^-6: the sum's last place is 2^-9
        code = bits_of(float_of(magnitude) + 16384.0f) - 0x46800000u;
    } else {
        code = (magnitude - 0x3C000000u + 0x7FFFFu + ((magnitude >> 20) & 1u)) >> 20;
    }
    return static_cast<std::uint8_t>(code);
}

// What code 0 to 255 stands for as a multiple of this level.
QMAPS_INLINE float scale_of_e4m3(std::uint32_t code, float level) {
    const float scale = from_e4m3(code) * level;
    const bool finite = (bits_of(level) & 0x7FFFFFFFu) < kInfinityBits;
    return finite && scale > kLargest ? kLargest : scale;
}

QMAPS_INLINE std::uint8_t scale_to_e4m3(float scale, float level) {
    float quotient = scale == 0.0f ? scale : scale / level;
    quotient = quotient > 448.0f ? 448.0f : quotient;
    quotient = quotient > 0.0f && quotient < 0.001953125f ? 0.001953125f : quotient;
    return to_e4m3(quotient);
}

// See qmaps.normalize.scale_format: finite scales stay finite, and those that are not 0 stay so.
QMAPS_INLINE std::uint16_t scale_to_f16(float scale) {
    const std::uint16_t half = to_f16(scale > 65504.0f && scale <= kLargest ? 65504.0f : scale);
    return half == 0 && scale > 0.0f ? 1 : half;
}

QMAPS_INLINE std::uint16_t scale_to_bf16(float scale) {
    const float largest = float_of(0x7F7F0000u);
    const std::uint16_t half = to_bf16(scale > largest && scale <= kLargest ? largest : scale);
    return half == 0 && scale > 0.0f ? 1 : half;
}

// See qmaps.normalize.e8m0.
QMAPS_INLINE std::uint16_t scale_to_exponent(float scale) {
    const std::uint32_t bits = bits_of(scale) & 0x7FFFFFFFu;
    const std::uint32_t exponent = bits >> 23;
    const std::uint32_t above = exponent < 253 ? exponent + 1 : exponent == 255 ? 255 : 254;
    return static_cast<std::uint16_t>(bits == 0 ? 0 : above);
}

// The bits that a scale is stored as, in a format other than float32; and the scale they stand for.
QMAPS_INLINE std::uint16_t scale_bits(int kind, float scale) {
    if (kind == kScaleFloat16) return scale_to_f16(scale);
    if (kind == kScaleBfloat16) return scale_to_bf16(scale);
    if (kind == kScaleFloat16Squared) return scale_to_f16(root_of(scale));
    return scale_to_exponent(scale);
}

QMAPS_INLINE float scale_of_bits(int kind, std::uint16_t bits) {
    if (kind == kScaleFloat16) return from_f16(bits);
    if (kind == kScaleBfloat16) return from_bf16(bits);
    if (kind == kScaleFloat16Squared) return from_f16(bits) * from_f16(bits);
    return float_of(static_cast<std::uint32_t>(bits) << 23);
}

// The bits of a scale that is one of its format already; rounding once more would raise powers of two.
QMAPS_INLINE std::uint16_t exact_scale_bits(int kind, float scale) {
    return kind == kScalePowerOfTwo ? static_cast<std::uint16_t>(bits_of(scale) >> 23)
                                    : scale_bits(kind, scale);
}

QMAPS_INLINE float stored_scale(int kind, const void* stored, std::int64_t index) {
    return scale_of_bits(kind, scale_bytes(kind) == 1
                                   ? static_cast<const std::uint8_t*>(stored)[index]
                                   : static_cast<const std::uint16_t*>(stored)[index]);
}

QMAPS_INLINE void put_scale_bits(int kind, std::uint16_t bits, void* stored, std::int64_t index) {
    if (scale_bytes(kind) == 1) {
        static_cast<std::uint8_t*>(stored)[index] = static_cast<std::uint8_t>(bits);
    } else {
        static_cast<std::uint16_t*>(stored)[index] = bits;
    }
}

// What a scale becomes in its format.
QMAPS_INLINE float in_format(int kind, float scale) {
    return kind == kScaleFloat32 ? scale : scale_of_bits(kind, scale_bits(kind, scale));
}

// Store a scale in its format, and return what it stands for there.
QMAPS_INLINE float keep_scale(int kind, float scale, void* stored, std::int64_t index) {
    if (kind == kScaleFloat32) {
        static_cast<float*>(stored)[index] = scale;
        return scale;
    }
    const std::uint16_t bits = scale_bits(kind, scale);
    put_scale_bits(kind, bits, stored, index);
    return scale_of_bits(kind, bits);
}

// The scale of what has this largest magnitude; see qmaps.normalize.unscaled.
QMAPS_INLINE float one_of(float largest) {
    return largest == 0.0f ? 0.0f : largest <= kLargest ? 1.0f : float_of(0x7FC00000u);
}
