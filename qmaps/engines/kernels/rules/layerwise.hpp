// Trust ratios; qmaps.optim.norms.
//
// A rule that takes norms (QMAPS_RULE) has besides what every rule has:
//   measured     the element whose norm counts beside the parameter's
//   measures     the states that it reads
//   settle       what sums of squares of the parameter's and of the measured elements give, and
//                their count: further scalars, from kScalars to kSettled, after those given.
//                Computed in float64 and then rounded

// 1 where one of the norms is 0 or the ratio overflows. NaN stays.
QMAPS_INLINE float trusted(double ratio, double one, double other) {
    const float rounded = static_cast<float>(ratio);
    return one == 0 || other == 0 || rounded > kLargest ? 1.0f : rounded;
}

QMAPS_INLINE float clipped(double update_norm, double param_norm, float max_unorm) {
    const double ratio = max_unorm * param_norm / update_norm;
    return trusted(ratio > 1 ? 1.0 : ratio, param_norm, update_norm);
}
