// Sides: states of fewer elements than the parameter, of which each element takes one number.
//
// A rule with sides has besides what every rule has:
//   kSides            how the number comes about; see below. A rule finds it in s[kStates]
// Under kProduct, statistics of rows and of columns (qmaps.optim.factored), besides:
//   squared           what means are taken of, from an element of the gradient
//   blended           the new statistic, from the old one and the mean
//   row_factor, column_factor    from a row's statistic over the mean of all and from a column's
enum Sides : int {
    kNoSides,
    kProduct,   // of the factors of its row and of its column
    kSmallest,  // of all slices that it lies in; the rule leaves in its place a number whose maxima
                // over slices are the new states
};

template <class R>
constexpr auto sides_of(int) -> decltype(R::kSides) {
    return R::kSides;
}
template <class R>
constexpr Sides sides_of(long) {
    return kNoSides;
}

// Numbers that are added first; qmaps.optim.reductions.
constexpr int kRowLanes = 32;
constexpr int kRowChunk = 512;
constexpr int kColumnChunk = 64;

// A row's statistic over the mean of all.
QMAPS_INLINE float relative(float row, float mean) { return row / (mean == 0 ? 1.0f : mean); }
