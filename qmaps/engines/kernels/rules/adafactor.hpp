// qmaps.optim.Adafactor, with a first moment or without, factored or whole.

QMAPS_SCALARS(adafactor, rho, scale_parameter, scale_weight_decay, weight_decay, least, small, kept,
              rest, d, beta1, rest1, correction, beta3, rest3, came_eps, growth, apollo_scale,
              sign)

template <bool kMomentum, bool kFactored>
struct Adafactor {
    static constexpr int kStates = kMomentum + !kFactored;
    static constexpr int kVariance = kMomentum;
    using At = adafactor_scalars;
    enum { kAlpha = At::kScalars, kLeft, kDivisor, kSettled };  // by settle
    float alpha, decay, left, small, kept, rest, beta1, rest1, sign;
    float divisor;  // 1 or more: what clipping divides updates by
    Bound bound;

    QMAPS_INLINE explicit Adafactor(const float* c)
        : alpha(c[kAlpha]), decay(c[At::weight_decay]), left(c[kLeft]), small(c[At::small]), kept(c[At::kept]),
          rest(c[At::rest]), beta1(c[At::beta1]), rest1(c[At::rest1]), sign(c[At::sign]),
          divisor(c[kDivisor]) {}

    // The first moment takes the second one.
    static constexpr unsigned reads(unsigned wanted) {
        return kMomentum && wanted & 1u ? (1u << kStates) - 1 : wanted;
    }
    static constexpr unsigned measures(const float*) { return kFactored ? 0 : 1u << kVariance; }

    QMAPS_INLINE static float squared(float g, const float* c) { return bounded(g * g) + c[At::small]; }
    QMAPS_INLINE static float blended(float old, float mean, const float* c) {
        return old * c[At::kept] + mean * c[At::rest];
    }
    QMAPS_INLINE static float row_factor(float relative) { return root_of(relative); }
    QMAPS_INLINE static float column_factor(float statistic) { return root_of(statistic); }

    // Before clipping.
    QMAPS_INLINE float measured(float, float g, float* s) const {
        const float grad = g * sign;
        float denominator = s[kStates];
        if (!kFactored) {
            s[kVariance] = s[kVariance] * kept + (bound(grad * grad) + small) * rest;
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
        const float least = rms > c[At::least] || is_nan(rms) ? rms : c[At::least];
        const float alpha = c[At::scale_parameter] != 0 ? least * c[At::rho] : c[At::rho];
        const float ratio = static_cast<float>(double_root_of(measured / count)) / c[At::d];
        c[kLeft] = 1.0f - (c[At::scale_weight_decay] != 0 ? alpha : c[At::rho]) * c[At::weight_decay];
        c[kAlpha] = alpha;
        c[kDivisor] = ratio > 1 || is_nan(ratio) ? ratio : 1.0f;
    }
};

QMAPS_RULE(adafactor, "variance", kNotFactored, kTakesNorms, Adafactor<false, false>)
QMAPS_RULE(adafactor, "exp_avg variance", kNotFactored, kTakesNorms, Adafactor<true, false>)
QMAPS_RULE(adafactor, "factored", kProduct, kTakesNorms, Adafactor<false, true>)
QMAPS_RULE(adafactor, "exp_avg factored", kProduct, kTakesNorms, Adafactor<true, true>)
