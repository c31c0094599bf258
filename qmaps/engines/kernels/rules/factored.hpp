// Factoring: states of fewer elements than the parameter, of which each element takes one number. A
// rule says what kind it has (QMAPS_RULE, enum Factoring of declarations.py), and finds the number in
// s[kStates]:
//   kProduct          of the factors of its row and of its column
//   kSmallest         of all slices that it lies in; the rule leaves in its place a number whose
//                     maxima over slices are the new states
// Under kProduct, statistics of rows and of columns (qmaps.optim.factored), it has besides what
// every rule has:
//   squared           what means are taken of, from an element of the gradient
//   blended           the new statistic, from the old one and the mean
//   row_factor, column_factor    from a row's statistic over the mean of all and from a column's

// Numbers that are added first; qmaps.optim.reductions.
constexpr int kRowLanes = 32;
constexpr int kRowChunk = 512;
constexpr int kColumnChunk = 64;

// A row's statistic over the mean of all.
QMAPS_INLINE float relative(float row, float mean) { return row / (mean == 0 ? 1.0f : mean); }
