// qmaps.optim.Adan

QMAPS_SCALARS(adan, decay, growth, beta1, beta2, beta3, step_size, correction, difference_correction,
              root_correction, changed, eps, sign, rest1, rest2, rest3)

struct Adan {
    static constexpr int kStates = 4;
    using At = adan_scalars;
    float decay, growth, beta1, beta2, beta3, size, correction, difference_correction, changed, eps,
        sign, rest1, rest2, rest3;
    Divisor root;  // from 2^-27 to 1
    Bound bound;

    QMAPS_INLINE explicit Adan(const float* c)
        : decay(c[At::decay]), growth(c[At::growth]), beta1(c[At::beta1]), beta2(c[At::beta2]),
          beta3(c[At::beta3]), size(c[At::step_size]), correction(c[At::correction]),
          difference_correction(c[At::difference_correction]), changed(c[At::changed]),
          eps(c[At::eps]), sign(c[At::sign]), rest1(c[At::rest1]), rest2(c[At::rest2]),
          rest3(c[At::rest3]), root(c[At::root_correction]) {}

    // The moments of changes, and of what they are added to, read the last gradient.
    static constexpr unsigned reads(unsigned wanted) { return wanted & 6u ? wanted | 8u : wanted; }

    QMAPS_INLINE float operator()(float p, float g, float* s) const {
        const float grad = g * sign;
        const float change = (grad + s[3]) * changed;
        const float ahead = grad + change * beta2;
        s[0] = s[0] * beta1 + grad * rest1;
        s[1] = s[1] * beta2 + change * rest2;
        s[2] = bound(s[2] * beta3 + (ahead * ahead) * rest3);
        s[3] = -grad;
        const float magnitude = root_of(s[2]);
        // Infinity and NaN stay.
        const float denominator = (magnitude <= kLargest ? root.under(magnitude) : magnitude) + eps;
        const float mixed = s[0] * correction + s[1] * difference_correction;
        const float moved = p * decay - (mixed / denominator) * size;
        return growth != 1 ? moved / growth : moved;
    }
};

QMAPS_RULE(adan, "exp_avg exp_avg_diff exp_avg_sq neg_pre_grad", kNotFactored, kNoNorms, Adan)
