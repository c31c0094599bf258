// Terms that several rules share; qmaps.optim.terms.

// The directed gradient with L2 weight decay.
ALWAYS_INLINE inline float coupled(float p, float grad, float decay) {
    return decay != 0 ? grad + p * decay : grad;
}
