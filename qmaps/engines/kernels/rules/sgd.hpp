// qmaps.optim.SGD, with a momentum buffer or without.

template <bool kMomentum>
struct Sgd {
    static constexpr const char* kName = "sgd";
    static constexpr const char* kStateNames = kMomentum ? "momentum_buffer" : "";
    static constexpr int kStates = kMomentum;
    enum { kDecay, kMomentumFactor, kRest, kLookahead, kStepSize, kSign, kScalars };
    float decay, momentum, rest, lookahead, size, sign;

    QMAPS_INLINE explicit Sgd(const float* c)
        : decay(c[kDecay]), momentum(c[kMomentumFactor]), rest(c[kRest]),
          lookahead(c[kLookahead]), size(c[kStepSize]), sign(c[kSign]) {}

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
