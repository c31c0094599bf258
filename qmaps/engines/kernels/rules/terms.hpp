// Terms that several rules share; qmaps.optim.rule.

// Second moments are at most this: infinity would reach all elements that share its scale.
constexpr float kLargestSquare = 8.507059173023462e+37f;  // 2^126

// The smaller of a second moment and that; NaN stays.
QMAPS_INLINE float bounded(float v, float most = kLargestSquare) { return most < v ? most : v; }

// The same in one instruction, for rules, which are made outside of the loop over elements: within
// one, QMAPS_UNKNOWN would keep it from being vectorized.
struct Bound {
    float most = kLargestSquare;

    QMAPS_INLINE Bound() { QMAPS_UNKNOWN(most); }
    QMAPS_INLINE float operator()(float v) const { return bounded(v, most); }
};

// The directed gradient with L2 weight decay.
QMAPS_INLINE float coupled(float p, float grad, float decay) {
    return decay != 0 ? grad + p * decay : grad;
}
