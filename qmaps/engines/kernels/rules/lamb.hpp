// qmaps.optim.LAMB

struct Lamb {
    static constexpr const char* kName = "lamb";
    static constexpr const char* kStateNames = "exp_avg exp_avg_sq";
    static constexpr int kStates = 2;
    enum { kDecay, kBeta1, kBeta2, kStepSize, kCorrection, kRootCorrection, kEps, kSign, kRest1,
           kRest2, kTrustClip, kMaxUnorm, kScalars, kRatio = kScalars, kSettled };
    float decay, beta1, beta2, correction, eps, sign, rest1, rest2, size;
    Divisor root;  // from 2^-27 to 1

    QMAPS_INLINE explicit Lamb(const float* c)
        : decay(c[kDecay]), beta1(c[kBeta1]), beta2(c[kBeta2]), correction(c[kCorrection]),
          eps(c[kEps]), sign(c[kSign]), rest1(c[kRest1]), rest2(c[kRest2]),
          size(c[kRatio] * c[kStepSize]), root(c[kRootCorrection]) {}

    static constexpr unsigned reads(unsigned wanted) { return wanted; }
    static constexpr unsigned measures(const float*) { return 3; }

    QMAPS_INLINE float measured(float p, float g, float* s) const {
        const float grad = g * sign;
        s[0] = s[0] * beta1 + grad * rest1;
        s[1] = s[1] * beta2 + (grad * grad) * rest2;
        const float spread = root_of(s[1]);
        // Infinity and NaN stay.
        const float denominator = (spread <= kLargest ? root.under(spread) : spread) + eps;
        return coupled(p, (s[0] / denominator) * correction, decay);
    }

    QMAPS_INLINE float operator()(float p, float g, float* s) const {
        return p - measured(p, g, s) * size;
    }

    QMAPS_INLINE static float ratio(double p, double r, const float* c) {
        if (c[kMaxUnorm] != 0) return clipped(r, p, c[kMaxUnorm]);
        double trust = p / r;
        if (c[kTrustClip] != 0 && trust > c[kTrustClip]) trust = c[kTrustClip];
        return trusted(trust, p, r);
    }
    QMAPS_INLINE static void settle(double p, double measured, double, float* c) {
        c[kRatio] = ratio(double_root_of(p), double_root_of(measured), c);
    }
};
