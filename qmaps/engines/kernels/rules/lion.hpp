// qmaps.optim.Lion

QMAPS_SCALARS(lion, decay, beta1, beta2, step_size, sign, rest1, rest2)

struct Lion {
    static constexpr int kStates = 1;
    using At = lion_scalars;
    float decay, beta1, beta2, size, sign, rest1, rest2;

    QMAPS_INLINE explicit Lion(const float* c)
        : decay(c[At::decay]), beta1(c[At::beta1]), beta2(c[At::beta2]), size(c[At::step_size]),
          sign(c[At::sign]), rest1(c[At::rest1]), rest2(c[At::rest2]) {}

    static constexpr unsigned reads(unsigned wanted) { return wanted; }

    QMAPS_INLINE float operator()(float p, float g, float* s) const {
        const float grad = g * sign;
        const float c = s[0] * beta1 + grad * rest1;
        const float direction = c > 0 ? 1.0f : c < 0 ? -1.0f : c;
        s[0] = s[0] * beta2 + grad * rest2;
        return p * decay - direction * size;
    }
};

QMAPS_RULE(lion, "exp_avg", kNotFactored, kNoNorms, Lion)
