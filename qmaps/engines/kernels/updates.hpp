// Adam updates computed from decoded moments; see qmaps.algebra.pair for the operations.

QMAPS_INLINE float adam_update(float m, float v, float eps) { return m / (root_of(v) + eps); }

// True if v decodes to 0, though it is not 0, and m does not.
QMAPS_INLINE bool collapsed(float m, float v, float exact_v) {
    return exact_v != 0.0f && v == 0.0f && m != 0.0f;
}
