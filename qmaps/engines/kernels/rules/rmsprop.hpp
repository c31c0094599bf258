// qmaps.optim.RMSprop, with momentum and centering or without.

QMAPS_SCALARS(rmsprop, weight_decay, alpha, rest, eps, momentum, step_size, sign)

template <bool kMomentum, bool kCentered>
struct RmsProp {
    static constexpr int kStates = 1 + kMomentum + kCentered;
    static constexpr int kBuffer = 1, kAverage = 1 + kMomentum;
    using At = rmsprop_scalars;
    float decay, alpha, rest, eps, momentum, size, sign;
    Bound bound;

    QMAPS_INLINE explicit RmsProp(const float* c)
        : decay(c[At::weight_decay]), alpha(c[At::alpha]), rest(c[At::rest]), eps(c[At::eps]),
          momentum(c[At::momentum]), size(c[At::step_size]), sign(c[At::sign]) {}

    // The buffer takes the variance, and so all states.
    static constexpr unsigned reads(unsigned wanted) {
        return kMomentum && wanted >> kBuffer & 1u ? (1u << kStates) - 1 : wanted;
    }

    QMAPS_INLINE float operator()(float p, float g, float* s) const {
        const float grad = coupled(p, g * sign, decay);
        s[0] = bound(s[0] * alpha + (grad * grad) * rest);
        float variance = s[0];
        if (kCentered) {
            s[kAverage] = s[kAverage] * alpha + grad * rest;
            const float centered = s[0] - s[kAverage] * s[kAverage];
            variance = centered < 0 ? s[0] : centered;
        }
        float move = grad / (root_of(variance) + eps);
        if (kMomentum) move = s[kBuffer] = s[kBuffer] * momentum + move;
        return p - move * size;
    }
};

QMAPS_RULE(rmsprop, "square_avg", kNotFactored, kNoNorms, RmsProp<false, false>)
QMAPS_RULE(rmsprop, "square_avg momentum_buffer", kNotFactored, kNoNorms, RmsProp<true, false>)
QMAPS_RULE(rmsprop, "square_avg grad_avg", kNotFactored, kNoNorms, RmsProp<false, true>)
QMAPS_RULE(rmsprop, "square_avg momentum_buffer grad_avg", kNotFactored, kNoNorms, RmsProp<true, true>)
