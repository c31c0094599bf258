// qmaps.optim.Adafactor, with a first moment or without, factored or whole.

template <bool kMomentum, bool kFactored>
struct Adafactor {
    static constexpr const char* kName = "adafactor";
    static constexpr const char* kStateNames =
        kMomentum ? (kFactored ? "exp_avg sides" : "exp_avg variance")
                  : (kFactored ? "sides" : "variance");
    static constexpr int kStates = kMomentum + !kFactored;
    static constexpr Sides kSides = kFactored ? kProduct : kNoSides;
    static constexpr int kVariance = kMomentum;
    enum { kRho, kScaleParameter, kScaleDecay, kDecay, kLeast, kSmall, kKept, kRest, kClip, kBeta1,
           kRest1, kCorrection, kBeta3, kRest3, kCameEps, kGrowth, kApolloScale, kSign, kScalars,
           kAlpha = kScalars, kLeft, kDivisor, kSettled };
    float alpha, decay, left, small, kept, rest, beta1, rest1, sign;
    float divisor;  // 1 or more: what clipping divides updates by

    QMAPS_INLINE explicit Adafactor(const float* c)
        : alpha(c[kAlpha]), decay(c[kDecay]), left(c[kLeft]), small(c[kSmall]), kept(c[kKept]),
          rest(c[kRest]), beta1(c[kBeta1]), rest1(c[kRest1]), sign(c[kSign]),
          divisor(c[kDivisor]) {}

    // The first moment takes the second one.
    static constexpr unsigned reads(unsigned wanted) {
        return kMomentum && wanted & 1u ? (1u << kStates) - 1 : wanted;
    }
    static constexpr unsigned measures(const float*) { return kFactored ? 0 : 1u << kVariance; }

    QMAPS_INLINE static float squared(float g, const float* c) { return g * g + c[kSmall]; }
    QMAPS_INLINE static float blended(float old, float mean, const float* c) {
        return old * c[kKept] + mean * c[kRest];
    }
    QMAPS_INLINE static float row_factor(float relative) { return root_of(relative); }
    QMAPS_INLINE static float column_factor(float statistic) { return root_of(statistic); }

    // Before clipping.
    QMAPS_INLINE float measured(float, float g, float* s) const {
        const float grad = g * sign;
        float denominator = s[kStates];
        if (!kFactored) {
            s[kVariance] = s[kVariance] * kept + (grad * grad + small) * rest;
            denominator = root_of(s[kVariance]);
        }
        return denominator == 0 ? 0.0f : grad / denominator;
    }

    QMAPS_INLINE float operator()(float p, float g, float* s) const {
        float u = measured(p, g, s) / divisor;
        if (kMomentum) u = s[0] = s[0] * beta1 + u * rest1;
        return (decay != 0 ? p * left : p) - u * alpha;
    }

    QMAPS_INLINE static void settle(double p, double measured, double count, float* c) {
        const float rms = static_cast<float>(double_root_of(p / count));
        const float least = rms > c[kLeast] || is_nan(rms) ? rms : c[kLeast];
        const float alpha = c[kScaleParameter] != 0 ? least * c[kRho] : c[kRho];
        const float ratio = static_cast<float>(double_root_of(measured / count)) / c[kClip];
        c[kLeft] = 1.0f - (c[kScaleDecay] != 0 ? alpha : c[kRho]) * c[kDecay];
        c[kAlpha] = alpha;
        c[kDivisor] = ratio > 1 || is_nan(ratio) ? ratio : 1.0f;
    }
};
