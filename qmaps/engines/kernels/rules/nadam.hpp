// qmaps.optim.NAdam

QMAPS_SCALARS(nadam, decay, weight_decay, beta1, beta2, step_size, gradient_step_size, root_correction,
              eps, sign, rest1, rest2)

struct NAdam : Moments<nadam_scalars> {
    using At = nadam_scalars;
    float decay, coupling, gradient_size;

    QMAPS_INLINE explicit NAdam(const float* c)
        : Moments(c), decay(c[At::decay]), coupling(c[At::weight_decay]),
          gradient_size(c[At::gradient_step_size]) {}

    QMAPS_INLINE float operator()(float p, float g, float* s) const {
        p = p * decay;
        const float grad = coupled(p, g * sign, coupling);
        average(grad, s);
        return p - (grad * gradient_size + s[0] * size) / denominator(s[1]);
    }
};

QMAPS_RULE(nadam, "exp_avg exp_avg_sq", kNotFactored, kNoNorms, NAdam)
