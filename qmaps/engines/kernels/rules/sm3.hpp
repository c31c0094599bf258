// qmaps.optim.SM3, with a momentum buffer or without.

QMAPS_SCALARS(sm3, weight_decay, momentum, rest, step_size, sign)

template <bool kMomentum>
struct Sm3 {
    static constexpr int kStates = kMomentum;
    using At = sm3_scalars;
    float decay, momentum, rest, size, sign;
    Bound bound;

    QMAPS_INLINE explicit Sm3(const float* c)
        : decay(c[At::weight_decay]), momentum(c[At::momentum]), rest(c[At::rest]), size(c[At::step_size]),
          sign(c[At::sign]) {}

    static constexpr unsigned reads(unsigned wanted) { return wanted; }

    QMAPS_INLINE float operator()(float p, float g, float* s) const {
        const float grad = coupled(p, g * sign, decay);
        const float v = s[kStates] = bound(s[kStates] + grad * grad);
        float u = v == 0 ? 0.0f : grad / root_of(v);
        if (kMomentum) u = s[0] = s[0] * momentum + u * rest;
        return p - u * size;
    }
};

QMAPS_RULE(sm3, "factored", kSmallest, kNoNorms, Sm3<false>)
QMAPS_RULE(sm3, "momentum_buffer factored", kSmallest, kNoNorms, Sm3<true>)
