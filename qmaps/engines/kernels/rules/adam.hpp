// qmaps.optim.Adam and AdamW

QMAPS_SCALARS(adam, decay, weight_decay, beta1, beta2, step_size, root_correction, eps, sign, rest1, rest2)
QMAPS_SCALARS(adamw, decay, beta1, beta2, step_size, root_correction, eps, sign, rest1, rest2)

// What both do after weight decay.
template <class At>
struct Moments {
    static constexpr int kStates = 2;
    float beta1, beta2, size, eps, sign, rest1, rest2;
    Divisor root;  // from 2^-27 to 1
    Bound bound;

    QMAPS_INLINE explicit Moments(const float* c)
        : beta1(c[At::beta1]), beta2(c[At::beta2]), size(c[At::step_size]), eps(c[At::eps]),
          sign(c[At::sign]), rest1(c[At::rest1]), rest2(c[At::rest2]),
          root(c[At::root_correction]) {}

    static constexpr unsigned reads(unsigned wanted) { return wanted; }

    QMAPS_INLINE float denominator(float v) const {
        const float magnitude = root_of(v);
        // Infinity and NaN stay.
        return (magnitude <= kLargest ? root.under(magnitude) : magnitude) + eps;
    }

    // By the moments m and v.
    QMAPS_INLINE float moved(float p, float m, float v) const {
        return p - (m / denominator(v)) * size;
    }

    QMAPS_INLINE void average(float grad, float* s) const {
        s[0] = s[0] * beta1 + grad * rest1;
        s[1] = bound(s[1] * beta2 + (grad * grad) * rest2);
    }

    QMAPS_INLINE float finish(float p, const float* s) const { return moved(p, s[0], s[1]); }
};

struct Adam : Moments<adam_scalars> {
    float decay, coupling;

    QMAPS_INLINE explicit Adam(const float* c)
        : Moments(c), decay(c[adam_scalars::decay]), coupling(c[adam_scalars::weight_decay]) {}

    QMAPS_INLINE float begin(float p, float g, float* s) const {
        p = p * decay;
        average(coupled(p, g * sign, coupling), s);
        return p;
    }

    QMAPS_INLINE float operator()(float p, float g, float* s) const { return finish(begin(p, g, s), s); }
};

struct AdamW : Moments<adamw_scalars> {
    float decay;

    // A gradient counts by its sign for the first moment alone.
    QMAPS_INLINE explicit AdamW(const float* c) : Moments(c), decay(c[adamw_scalars::decay]) {
        rest1 = rest1 * sign;
    }

    QMAPS_INLINE float begin(float p, float g, float* s) const {
        average(g, s);
        return p * decay;
    }

    QMAPS_INLINE float operator()(float p, float g, float* s) const { return finish(begin(p, g, s), s); }
};

template <>
constexpr bool kInParts<Adam> = true;
template <>
constexpr bool kInParts<AdamW> = true;

QMAPS_RULE(adam, "exp_avg exp_avg_sq", kNotFactored, kNoNorms, Adam)
QMAPS_RULE(adamw, "exp_avg exp_avg_sq", kNotFactored, kNoNorms, AdamW)
