// qmaps.optim.LARS, with a momentum buffer or without.

QMAPS_SCALARS(lars, weight_decay, momentum, lookahead, trust_coefficient, max_unorm, step_size,
              sign)

template <bool kMomentum>
struct Lars {
    static constexpr int kStates = kMomentum;
    using At = lars_scalars;
    enum { kRatio = At::kScalars, kSettled };  // by settle
    float decay, momentum, lookahead, size, sign, trust;
    bool clips;  // the update, once there is one; otherwise its gradient is scaled

    QMAPS_INLINE explicit Lars(const float* c)
        : decay(c[At::weight_decay]), momentum(c[At::momentum]), lookahead(c[At::lookahead]),
          size(c[At::step_size]), sign(c[At::sign]), trust(c[kRatio]), clips(c[At::max_unorm] != 0) {}

    static constexpr unsigned reads(unsigned wanted) { return wanted; }
    QMAPS_INLINE static unsigned measures(const float* c) {
        return kMomentum && c[At::max_unorm] != 0 ? 1 : 0;
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
        if (c[At::max_unorm] != 0) return clipped(measured, p, c[At::max_unorm]);
        return trusted(c[At::trust_coefficient] * p / (measured + c[At::weight_decay] * p), p, measured);
    }
    QMAPS_INLINE static void settle(double p, double measured, double, float* c) {
        c[kRatio] = ratio(double_root_of(p), double_root_of(measured), c);
    }
};

QMAPS_RULE(lars, "", kNotFactored, kTakesNorms, Lars<false>)
QMAPS_RULE(lars, "momentum_buffer", kNotFactored, kTakesNorms, Lars<true>)
