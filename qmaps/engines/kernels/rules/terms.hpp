// Terms that several rules share; qmaps.optim.rule.

// Second moments are at most this: infinity would reach all elements that share its scale.
constexpr float kLargestSquare = 8.507059173023462e+37f;  // 2^126

// The smaller of a second moment and that; NaN stays.
struct Bound {
    float most = kLargestSquare;

    QMAPS_INLINE Bound() { QMAPS_UNKNOWN(most); }
    QMAPS_INLINE float operator()(float v) const { return most < v ? most : v; }
};

// The directed gradient with L2 weight decay.
QMAPS_INLINE float coupled(float p, float grad, float decay) {
    return decay != 0 ? grad + p * decay : grad;
}
