// qmaps.optim.AdamWScheduleFree

QMAPS_SCALARS(adamw_schedule_free, weight_decay, beta1, beta2, step_size, rest, root_correction, eps, sign, rest2)

struct AdamWScheduleFree {
    static constexpr int kStates = 2;
    using At = adamw_schedule_free_scalars;
    float coupling, beta1, beta2, size, rest, eps, sign, rest2;
    Divisor root;  // from 2^-27 to 1
    Bound bound;

    QMAPS_INLINE explicit AdamWScheduleFree(const float* c)
        : coupling(c[At::weight_decay]), beta1(c[At::beta1]), beta2(c[At::beta2]),
          size(c[At::step_size]), rest(c[At::rest]), eps(c[At::eps]), sign(c[At::sign]),
          rest2(c[At::rest2]), root(c[At::root_correction]) {}

    // The offset's step is divided by the root of the second moment.
    static constexpr unsigned reads(unsigned wanted) { return wanted & 1u ? wanted | 2u : wanted; }

    QMAPS_INLINE float operator()(float p, float g, float* s) const {
        const float grad = g * sign;
        s[1] = bound(s[1] * beta2 + (grad * grad) * rest2);
        const float magnitude = root_of(s[1]);
        // Infinity and NaN stay.
        const float denominator = (magnitude <= kLargest ? root.under(magnitude) : magnitude) + eps;
        const float step = coupled(p, grad / denominator, coupling) * size;
        const float offset = s[0];
        s[0] = (offset - step * beta1) * rest;
        return p + ((offset - step) - s[0]);
    }
};

QMAPS_RULE(adamw_schedule_free, "z_offset exp_avg_sq", kNotFactored, kNoNorms, AdamWScheduleFree)
