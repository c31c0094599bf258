// The dynamic program of qmaps.maps.lloyd, kEnds columns at a time.

// cost[i * kEnds + k]: the squared error of one code for everything between ends i and first + k,
// for i < rows; infinite where there is nothing between. w, wx, wxx are prefix sums at the ends.
static void interval_costs(const double* w, const double* wx, const double* wxx,
                           std::int64_t count, std::int64_t first, std::int64_t rows,
                           double* cost) {
    Doubles column[3][kEnds / kWide];
    for (int k = 0; k < kEnds; ++k) {
        const std::int64_t j = first + k < count ? first + k : count - 1;
        column[0][k / kWide][k % kWide] = w[j];
        column[1][k / kWide][k % kWide] = wx[j];
        column[2][k / kWide][k % kWide] = wxx[j];
    }
    const Doubles none = {}, tiny = none + 2.2250738585072014e-308;
    for (std::int64_t i = 0; i < rows; ++i)
        for (int k = 0; k < kEnds / kWide; ++k) {
            const Doubles mass = column[0][k] - w[i], sum = column[1][k] - wx[i];
            const Doubles square = sum * sum / (mass < tiny ? tiny : mass);
            const Doubles deviation = (column[2][k] - wxx[i]) - square;
            const Doubles clamped = deviation < none ? none : deviation;
            __builtin_memcpy(cost + i * kEnds + k * kWide, &clamped, sizeof clamped);
        }
    for (std::int64_t i = first + 1; i < rows; ++i)
        for (std::int64_t k = 0; k < i - first; ++k) cost[i * kEnds + k] = __builtin_inf();
}

// The least of before[i] + cost[i * kEnds + k] over all rows i, and the first row that has it.
static void least_sums(const double* before, const double* cost, std::int64_t rows, double* least,
                       std::int32_t* row) {
    constexpr int kColumns = kEnds / kWide;
    Doubles best[kColumns];
    Longs best_row[kColumns];
    const Doubles none = {};
    for (int k = 0; k < kColumns; ++k) {
        best[k] = none + __builtin_inf();
        best_row[k] = (Longs)none;
    }
    Longs number = (Longs)none;
    for (std::int64_t i = 0; i < rows; ++i) {
        const Doubles shared = none + before[i];
        for (int k = 0; k < kColumns; ++k) {
            Doubles sum;
            __builtin_memcpy(&sum, cost + i * kEnds + k * kWide, sizeof sum);
            sum += shared;
            const Longs less = sum < best[k];
            best[k] = less ? sum : best[k];
            best_row[k] = less ? number : best_row[k];
        }
        number += 1;
    }
    for (int k = 0; k < kEnds; ++k) {
        least[k] = best[k / kWide][k % kWide];
        row[k] = static_cast<std::int32_t>(best_row[k / kWide][k % kWide]);
    }
}

static constexpr LeastSquares kLeastSquares = {interval_costs, least_sums};
