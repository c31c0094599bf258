// Terms that several rules share; qmaps.optim.rule.

// The directed gradient with L2 weight decay.
QMAPS_INLINE float coupled(float p, float grad, float decay) {
    return decay != 0 ? grad + p * decay : grad;
}
