// qmaps.optim.AdamWFactor: with a factored second moment, or a whole one.

struct AdamWWhole : AdamW {
    static constexpr const char* kName = "adamw_factor";
    using AdamW::AdamW;
};

struct AdamWFactor : Moments {
    static constexpr const char* kName = "adamw_factor";
    static constexpr const char* kStateNames = "exp_avg sides";
    static constexpr int kStates = 1;
    static constexpr Sides kSides = kProduct;
    using Moments::Moments;

    QMAPS_INLINE static float squared(float g, const float*) { return g * g; }
    QMAPS_INLINE static float blended(float old, float mean, const float* c) {
        return old * c[kBeta2] + mean * c[kRest2];
    }
    QMAPS_INLINE static float row_factor(float relative) { return relative; }
    QMAPS_INLINE static float column_factor(float statistic) { return statistic; }

    QMAPS_INLINE float operator()(float p, float g, float* s) const {
        s[0] = s[0] * beta1 + (g * sign) * rest1;
        return moved(p * decay, s[0], s[1]);
    }
};
