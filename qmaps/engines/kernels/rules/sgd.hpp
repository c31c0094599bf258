// qmaps.optim.SGD, with a momentum buffer or without.

QMAPS_SCALARS(sgd, weight_decay, momentum, rest, lookahead, step_size, sign)

template <bool kMomentum>
struct Sgd {
    static constexpr int kStates = kMomentum;
    using At = sgd_scalars;
    float decay, momentum, rest, lookahead, size, sign;

    QMAPS_INLINE explicit Sgd(const float* c)
        : decay(c[At::weight_decay]), momentum(c[At::momentum]), rest(c[At::rest]),
          lookahead(c[At::lookahead]), size(c[At::step_size]), sign(c[At::sign]) {}

    static constexpr unsigned reads(unsigned wanted) { return wanted; }

    QMAPS_INLINE float operator()(float p, float g, float* s) const {
        float grad = coupled(p, g * sign, decay);
        if (kMomentum) {
            s[0] = s[0] * momentum + grad * rest;
            grad = lookahead != 0 ? grad + s[0] * lookahead : s[0];
        }
        return p - grad * size;
    }
};

QMAPS_RULE(sgd, "", kNotFactored, kNoNorms, Sgd<false>)
QMAPS_RULE(sgd, "momentum_buffer", kNotFactored, kNoNorms, Sgd<true>)
