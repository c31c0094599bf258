// qmaps.optim.LAMB

QMAPS_SCALARS(lamb, weight_decay, beta1, beta2, step_size, correction, root_correction, eps, sign,
              rest1, rest2, trust_clip, max_unorm)

struct Lamb {
    static constexpr int kStates = 2;
    using At = lamb_scalars;
    enum { kRatio = At::kScalars, kSettled };  // by settle
    float decay, beta1, beta2, correction, eps, sign, rest1, rest2, size;
    Divisor root;  // from 2^-27 to 1
    Bound bound;

    QMAPS_INLINE explicit Lamb(const float* c)
        : decay(c[At::weight_decay]), beta1(c[At::beta1]), beta2(c[At::beta2]), correction(c[At::correction]),
          eps(c[At::eps]), sign(c[At::sign]), rest1(c[At::rest1]), rest2(c[At::rest2]),
          size(step_size(c[kRatio], c[At::step_size])), root(c[At::root_correction]) {}

    static constexpr unsigned reads(unsigned wanted) { return wanted; }
    static constexpr unsigned measures(const float*) { return 3; }

    QMAPS_INLINE float measured(float p, float g, float* s) const {
        const float grad = g * sign;
        s[0] = s[0] * beta1 + grad * rest1;
        s[1] = bound(s[1] * beta2 + (grad * grad) * rest2);
        const float magnitude = root_of(s[1]);
        // Infinity and NaN stay.
        const float denominator = (magnitude <= kLargest ? root.under(magnitude) : magnitude) + eps;
        return coupled(p, (s[0] / denominator) * correction, decay);
    }

    QMAPS_INLINE float operator()(float p, float g, float* s) const {
        return p - measured(p, g, s) * size;
    }

    // lr where the product overflows.
    QMAPS_INLINE static float step_size(float trust, float lr) {
        return trust * lr > kLargest ? lr : trust * lr;
    }
    QMAPS_INLINE static float ratio(double p, double r, const float* c) {
        if (c[At::max_unorm] != 0) return clipped(r, p, c[At::max_unorm]);
        double trust = p / r;
        if (c[At::trust_clip] != 0 && trust > c[At::trust_clip]) trust = c[At::trust_clip];
        return trusted(trust, p, r);
    }
    QMAPS_INLINE static void settle(double p, double measured, double, float* c) {
        c[kRatio] = ratio(double_root_of(p), double_root_of(measured), c);
    }
};

QMAPS_RULE(lamb, "exp_avg exp_avg_sq", kNotFactored, kTakesNorms, Lamb)
