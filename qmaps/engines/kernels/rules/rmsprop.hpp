// qmaps.optim.RMSprop, with momentum and centering or without.

template <bool kMomentum, bool kCentered>
struct RmsProp {
    static constexpr const char* kName = "rmsprop";
    static constexpr const char* kStateNames =
        kMomentum ? (kCentered ? "square_avg momentum_buffer grad_avg" : "square_avg momentum_buffer")
                  : (kCentered ? "square_avg grad_avg" : "square_avg");
    static constexpr int kStates = 1 + kMomentum + kCentered;
    static constexpr int kBuffer = 1, kAverage = 1 + kMomentum;
    enum { kDecay, kAlpha, kRest, kEps, kMomentumFactor, kStepSize, kSign, kScalars };
    float decay, alpha, rest, eps, momentum, size, sign;

    QMAPS_INLINE explicit RmsProp(const float* c)
        : decay(c[kDecay]), alpha(c[kAlpha]), rest(c[kRest]), eps(c[kEps]),
          momentum(c[kMomentumFactor]), size(c[kStepSize]), sign(c[kSign]) {}

    // The buffer takes the variance, and so all states.
    static constexpr unsigned reads(unsigned wanted) {
        return kMomentum && wanted >> kBuffer & 1u ? (1u << kStates) - 1 : wanted;
    }

    QMAPS_INLINE float operator()(float p, float g, float* s) const {
        const float grad = coupled(p, g * sign, decay);
        s[0] = s[0] * alpha + (grad * grad) * rest;
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
