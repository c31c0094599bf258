// Terms that several rules share; qmaps.optim.rule.

// Infinity in a state would reach all elements that share its scale.
constexpr float kLargeSquare = 8.507059173023462e+37f;  // 2^126

// Infinity and NaN stay.
QMAPS_INLINE float at_most(float value, float limit) {
    limit = limit > kLargeSquare ? limit : kLargeSquare;
    return value > limit ? limit : value;
}
QMAPS_INLINE float square_of(float x) { return at_most(x * x, x < 0 ? -x : x); }
QMAPS_INLINE float sum_of_squares(float sum, float square) {
    return at_most(sum + square, sum > square ? sum : square);
}

// The directed gradient with L2 weight decay.
QMAPS_INLINE float coupled(float p, float grad, float decay) {
    return decay != 0 ? grad + p * decay : grad;
}
