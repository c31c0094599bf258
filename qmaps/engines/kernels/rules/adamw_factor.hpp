// qmaps.optim.AdamWFactor: with a factored second moment, or a whole one.

QMAPS_SAME_SCALARS(adamw_factor, adamw)

struct AdamWWhole : AdamW {
    using AdamW::AdamW;
};

struct AdamWFactor : Moments<adamw_factor_scalars> {
    using At = adamw_factor_scalars;
    static constexpr int kStates = 1;
    float decay;

    QMAPS_INLINE explicit AdamWFactor(const float* c) : Moments(c), decay(c[At::decay]) {}

    QMAPS_INLINE static float squared(float g, const float*) { return bounded(g * g); }
    QMAPS_INLINE static float blended(float old, float mean, const float* c) {
        return old * c[At::beta2] + mean * c[At::rest2];
    }
    QMAPS_INLINE static float row_factor(float relative) { return relative; }
    QMAPS_INLINE static float column_factor(float statistic) { return statistic; }

    QMAPS_INLINE float operator()(float p, float g, float* s) const {
        s[0] = s[0] * beta1 + (g * sign) * rest1;
        return moved(p * decay, s[0], s[1]);
    }
};

QMAPS_RULE(adamw_factor, "exp_avg factored", kProduct, kNoNorms, AdamWFactor)
QMAPS_RULE(adamw_factor, "exp_avg exp_avg_sq", kNotFactored, kNoNorms, AdamWWhole)
