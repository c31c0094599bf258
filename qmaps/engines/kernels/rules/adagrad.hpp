// qmaps.optim.Adagrad

struct Adagrad {
    static constexpr const char* kName = "adagrad";
    static constexpr const char* kStateNames = "sum";
    static constexpr int kStates = 1;
    enum { kDecay, kEps, kStepSize, kSign, kScalars };
    float decay, eps, size, sign;

    QMAPS_INLINE explicit Adagrad(const float* c)
        : decay(c[kDecay]), eps(c[kEps]), size(c[kStepSize]), sign(c[kSign]) {}

    static constexpr unsigned reads(unsigned wanted) { return wanted; }

    QMAPS_INLINE float operator()(float p, float g, float* s) const {
        const float grad = coupled(p, g * sign, decay);
        s[0] = s[0] + grad * grad;
        return p - (grad / (root_of(s[0]) + eps)) * size;
    }
};
