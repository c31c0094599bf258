// qmaps.optim.Adam and AdamW

// What both do after weight decay.
struct Moments {
    static constexpr const char* kStateNames = "exp_avg exp_avg_sq";
    static constexpr int kStates = 2;
    enum { kDecay, kBeta1, kBeta2, kStepSize, kRootCorrection, kEps, kSign, kRest1, kRest2, kScalars };
    float decay, beta1, beta2, size, eps, sign, rest1, rest2;
    Divisor root;  // from 2^-27 to 1

    QMAPS_INLINE explicit Moments(const float* c)
        : decay(c[kDecay]), beta1(c[kBeta1]), beta2(c[kBeta2]), size(c[kStepSize]),
          eps(c[kEps]), sign(c[kSign]), rest1(c[kRest1]), rest2(c[kRest2]),
          root(c[kRootCorrection]) {}

    static constexpr unsigned reads(unsigned wanted) { return wanted; }

    // By the moments m and v.
    QMAPS_INLINE float moved(float p, float m, float v) const {
        const float spread = root_of(v);
        // Infinity and NaN stay.
        const float denominator = (spread <= kLargest ? root.under(spread) : spread) + eps;
        return p - (m / denominator) * size;
    }

    QMAPS_INLINE float descend(float p, float grad, float* s) const {
        s[0] = s[0] * beta1 + grad * rest1;
        s[1] = s[1] * beta2 + (grad * grad) * rest2;
        return moved(p, s[0], s[1]);
    }
};

struct Adam : Moments {
    static constexpr const char* kName = "adam";
    using Moments::Moments;
    QMAPS_INLINE float operator()(float p, float g, float* s) const {
        return descend(p, coupled(p, g * sign, decay), s);
    }
};

struct AdamW : Moments {
    static constexpr const char* kName = "adamw";
    using Moments::Moments;
    QMAPS_INLINE float operator()(float p, float g, float* s) const { return descend(p * decay, g * sign, s); }
};
