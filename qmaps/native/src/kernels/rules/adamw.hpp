// qmaps.optim.AdamW

namespace adamw {

enum { kDecay, kBeta1, kBeta2, kStepSize, kRootCorrection, kEps, kSign, kRest1, kRest2, kScalars };

inline void apply(float* __restrict p, const float* __restrict g, float* const* s,
                  std::int64_t count, const float* c) {
    float* __restrict m = s[0];
    float* __restrict v = s[1];
    const float decay = c[kDecay], beta1 = c[kBeta1], beta2 = c[kBeta2], rest1 = c[kRest1];
    const float rest2 = c[kRest2], size = c[kStepSize], root = c[kRootCorrection], eps = c[kEps];
    const float sign = c[kSign];
    for (std::int64_t i = 0; i < count; ++i) {
        const float grad = g[i] * sign;
        m[i] = m[i] * beta1 + grad * rest1;
        v[i] = v[i] * beta2 + (grad * grad) * rest2;
        const float denominator = __builtin_sqrtf(v[i]) / root + eps;
        p[i] = p[i] * decay - (m[i] / denominator) * size;
    }
}

inline void advance(const float*, const float* __restrict g, float* const* s, std::int64_t count,
                    const float* c, unsigned wanted) {
    const float beta1 = c[kBeta1], beta2 = c[kBeta2], rest1 = c[kRest1], rest2 = c[kRest2];
    const float sign = c[kSign];
    if (wanted & 1u) {
        float* __restrict m = s[0];
        for (std::int64_t i = 0; i < count; ++i) m[i] = m[i] * beta1 + (g[i] * sign) * rest1;
    }
    if (wanted & 2u) {
        float* __restrict v = s[1];
        for (std::int64_t i = 0; i < count; ++i) {
            const float grad = g[i] * sign;
            v[i] = v[i] * beta2 + (grad * grad) * rest2;
        }
    }
}

inline unsigned reads(unsigned wanted) { return wanted; }

}  // namespace adamw
