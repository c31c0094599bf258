// Quotients and roots without the checks that compilers put before them, where none is needed: the
// operations after those checks, so that the bits are the same.
#pragma once

#include "language.cuh"

namespace qmaps {

// From 2^-100 to 2^100, off by one unit in the last place.
QMAPS_INLINE float about_inverse(float value) {
#if defined(__CUDA_ARCH__)
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(value));
    return inverse;
#else
    return 1.0f / value;
#endif
}

QMAPS_INLINE float about_inverse_root(float value) {
#if defined(__CUDA_ARCH__)
    float inverse;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(value));
    return inverse;
#else
    return static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(value)));
#endif
}

// Of a value from 2^-100 to 2^100.
QMAPS_INLINE float quick_root(float value) {
    const float inverse = about_inverse_root(value);
    const float root = value * inverse, half = inverse * 0.5f;
    return fused(fused(-root, root, value), half, root);
}

// Quotients x / d for d from 2^-100 to 2^100, and x that is 0, or from 2^-100 to 2^100 as the
// quotient is.
struct QuickDivisor {
    float d, inverse;

    QMAPS_INLINE explicit QuickDivisor(float divisor) : d(divisor) {
        const float about = about_inverse(divisor);
        inverse = fused(about, fused(-divisor, about, 1.0f), about);
    }

    // The remainder is that of the quotient from x, so that a 0 keeps its sign.
    QMAPS_INLINE float under(float x) const {
        const float quotient = x * inverse;
        return fused(-fused(d, quotient, -x), inverse, quotient);
    }
};

// Bits of the magnitudes of some numbers: the smallest but 0, less 1, and the largest.
struct Magnitudes {
    std::uint32_t least = kAll, most = 0;

    QMAPS_INLINE explicit Magnitudes(const float* x) {
        for (int j = 0; j < kUnit; ++j) {
            const std::uint32_t magnitude = bits_of(x[j]) & 0x7FFFFFFFu;
            least = magnitude - 1u < least ? magnitude - 1u : least;
            most = magnitude > most ? magnitude : most;
        }
    }
};

// Between two bounds; none is NaN.
QMAPS_INLINE float bounded(float value, float least, float most) {
#if defined(__CUDA_ARCH__)
    return fminf(fmaxf(value, least), most);
#else
    value = value > least ? value : least;
    return value < most ? value : most;
#endif
}

constexpr float kSmall = 7.888609052210118e-31f, kLarge = 67108864.0f;  // 2^-100, 2^26

}  // namespace qmaps
