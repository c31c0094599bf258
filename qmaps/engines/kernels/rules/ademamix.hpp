// qmaps.optim.AdEMAMix

struct AdEMAMix {
    static constexpr const char* kName = "ademamix";
    static constexpr const char* kStateNames = "exp_avg exp_avg_slow exp_avg_sq";
    static constexpr int kStates = 3;
    enum { kDecay, kBeta1, kBeta2, kBeta3, kStepSize, kCorrection, kRootCorrection, kAlpha, kEps,
           kSign, kRest1, kRest2, kRest3, kScalars };
    float decay, beta1, beta2, beta3, size, correction, alpha, eps, sign, rest1, rest2, rest3;
    Divisor root;  // from 2^-27 to 1

    QMAPS_INLINE explicit AdEMAMix(const float* c)
        : decay(c[kDecay]), beta1(c[kBeta1]), beta2(c[kBeta2]), beta3(c[kBeta3]),
          size(c[kStepSize]), correction(c[kCorrection]), alpha(c[kAlpha]), eps(c[kEps]),
          sign(c[kSign]), rest1(c[kRest1]), rest2(c[kRest2]), rest3(c[kRest3]),
          root(c[kRootCorrection]) {}

    static constexpr unsigned reads(unsigned wanted) { return wanted; }

    QMAPS_INLINE float operator()(float p, float g, float* s) const {
        const float grad = g * sign;
        s[0] = s[0] * beta1 + grad * rest1;
        s[1] = s[1] * beta3 + grad * rest3;
        s[2] = s[2] * beta2 + (grad * grad) * rest2;
        const float spread = root_of(s[2]);
        // Infinity and NaN stay.
        const float denominator = (spread <= kLargest ? root.under(spread) : spread) + eps;
        return p * decay - ((s[0] * correction + s[1] * alpha) / denominator) * size;
    }
};
