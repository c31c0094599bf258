// qmaps.optim.LARS, with a momentum buffer or without.

template <bool kMomentum>
struct Lars {
    static constexpr const char* kName = "lars";
    static constexpr const char* kStateNames = kMomentum ? "momentum_buffer" : "";
    static constexpr int kStates = kMomentum;
    enum { kDecay, kMomentumFactor, kLookahead, kTrust, kMaxUnorm, kStepSize, kSign, kScalars,
           kRatio = kScalars, kSettled };
    float decay, momentum, lookahead, size, sign, trust;
    bool clips;  // the update, once there is one; otherwise its gradient is scaled

    QMAPS_INLINE explicit Lars(const float* c)
        : decay(c[kDecay]), momentum(c[kMomentumFactor]), lookahead(c[kLookahead]),
          size(c[kStepSize]), sign(c[kSign]), trust(c[kRatio]), clips(c[kMaxUnorm] != 0) {}

    static constexpr unsigned reads(unsigned wanted) { return wanted; }
    QMAPS_INLINE static unsigned measures(const float* c) {
        return kMomentum && c[kMaxUnorm] != 0 ? 1 : 0;
    }

    QMAPS_INLINE float moved(float p, float g, float* s) const {
        float move = coupled(p, g * sign, decay);
        if (!clips) move = move * trust;
        if (kMomentum) {
            s[0] = s[0] * momentum + move;
            move = lookahead != 0 ? move + s[0] * lookahead : s[0];
        }
        return move;
    }

    QMAPS_INLINE float measured(float p, float g, float* s) const {
        return clips ? moved(p, g, s) : g * sign;
    }

    QMAPS_INLINE float operator()(float p, float g, float* s) const {
        const float move = moved(p, g, s);
        return p - (clips ? move * trust : move) * size;
    }

    QMAPS_INLINE static float ratio(double p, double measured, const float* c) {
        if (c[kMaxUnorm] != 0) return clipped(measured, p, c[kMaxUnorm]);
        return trusted(c[kTrust] * p / (measured + c[kDecay] * p), p, measured);
    }
    QMAPS_INLINE static void settle(double p, double measured, double, float* c) {
        c[kRatio] = ratio(double_root_of(p), double_root_of(measured), c);
    }
};
