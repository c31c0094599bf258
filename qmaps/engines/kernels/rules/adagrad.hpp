// qmaps.optim.Adagrad

QMAPS_SCALARS(adagrad, weight_decay, eps, step_size, sign)

struct Adagrad {
    static constexpr int kStates = 1;
    using At = adagrad_scalars;
    float decay, eps, size, sign;
    Bound bound;

    QMAPS_INLINE explicit Adagrad(const float* c)
        : decay(c[At::weight_decay]), eps(c[At::eps]), size(c[At::step_size]), sign(c[At::sign]) {}

    static constexpr unsigned reads(unsigned wanted) { return wanted; }

    QMAPS_INLINE float operator()(float p, float g, float* s) const {
        const float grad = coupled(p, g * sign, decay);
        s[0] = bound(s[0] + grad * grad);
        return p - (grad / (root_of(s[0]) + eps)) * size;
    }
};

QMAPS_RULE(adagrad, "sum", kNotFactored, kNoNorms, Adagrad)
