// qmaps.optim.Lion

struct Lion {
    static constexpr const char* kName = "lion";
    static constexpr const char* kStateNames = "exp_avg";
    static constexpr int kStates = 1;
    enum { kDecay, kBeta1, kBeta2, kStepSize, kSign, kRest1, kRest2, kScalars };
    float decay, beta1, beta2, size, sign, rest1, rest2;

    QMAPS_INLINE explicit Lion(const float* c)
        : decay(c[kDecay]), beta1(c[kBeta1]), beta2(c[kBeta2]), size(c[kStepSize]),
          sign(c[kSign]), rest1(c[kRest1]), rest2(c[kRest2]) {}

    static constexpr unsigned reads(unsigned wanted) { return wanted; }

    QMAPS_INLINE float operator()(float p, float g, float* s) const {
        const float grad = g * sign;
        const float c = s[0] * beta1 + grad * rest1;
        const float direction = c > 0 ? 1.0f : c < 0 ? -1.0f : c;
        s[0] = s[0] * beta2 + grad * rest2;
        return p * decay - direction * size;
    }
};
