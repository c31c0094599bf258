// qmaps.optim.AdEMAMix

QMAPS_SCALARS(ademamix, decay, beta1, beta2, beta3, step_size, correction, root_correction, alpha,
              eps, sign, rest1, rest2, rest3)

struct AdEMAMix {
    static constexpr int kStates = 3;
    using At = ademamix_scalars;
    float decay, beta1, beta2, beta3, size, correction, alpha, eps, sign, rest1, rest2, rest3;
    Divisor root;  // from 2^-27 to 1
    Bound bound;

    QMAPS_INLINE explicit AdEMAMix(const float* c)
        : decay(c[At::decay]), beta1(c[At::beta1]), beta2(c[At::beta2]), beta3(c[At::beta3]),
          size(c[At::step_size]), correction(c[At::correction]), alpha(c[At::alpha]), eps(c[At::eps]),
          sign(c[At::sign]), rest1(c[At::rest1]), rest2(c[At::rest2]), rest3(c[At::rest3]),
          root(c[At::root_correction]) {}

    static constexpr unsigned reads(unsigned wanted) { return wanted; }

    QMAPS_INLINE float operator()(float p, float g, float* s) const {
        const float grad = g * sign;
        s[0] = s[0] * beta1 + grad * rest1;
        s[1] = s[1] * beta3 + grad * rest3;
        s[2] = bound(s[2] * beta2 + (grad * grad) * rest2);
        const float magnitude = root_of(s[2]);
        // Infinity and NaN stay.
        const float denominator = (magnitude <= kLargest ? root.under(magnitude) : magnitude) + eps;
        return p * decay - ((s[0] * correction + s[1] * alpha) / denominator) * size;
    }
};

QMAPS_RULE(ademamix, "exp_avg exp_avg_slow exp_avg_sq", kNotFactored, kNoNorms, AdEMAMix)
