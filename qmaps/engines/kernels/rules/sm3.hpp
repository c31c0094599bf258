// qmaps.optim.SM3, with a momentum buffer or without.

template <bool kMomentum>
struct Sm3 {
    static constexpr const char* kName = "sm3";
    static constexpr const char* kStateNames = kMomentum ? "momentum_buffer sides" : "sides";
    static constexpr int kStates = kMomentum;
    static constexpr Sides kSides = kSmallest;
    enum { kDecay, kMomentumFactor, kRest, kStepSize, kSign, kScalars };
    float decay, momentum, rest, size, sign;

    QMAPS_INLINE explicit Sm3(const float* c)
        : decay(c[kDecay]), momentum(c[kMomentumFactor]), rest(c[kRest]), size(c[kStepSize]),
          sign(c[kSign]) {}

    static constexpr unsigned reads(unsigned wanted) { return wanted; }

    QMAPS_INLINE float operator()(float p, float g, float* s) const {
        const float grad = coupled(p, g * sign, decay);
        const float v = s[kStates] = s[kStates] + grad * grad;
        float u = v == 0 ? 0.0f : grad / root_of(v);
        if (kMomentum) u = s[0] = s[0] * momentum + u * rest;
        return p - u * size;
    }
};
