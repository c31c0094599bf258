// The dynamic program of qmaps.maps.lloyd: the least of before[i] + cost[i] over all rows i, for
// kEnds columns at once, and the first row that has it.
static void least_sums(const double* before, const double* cost, std::int64_t rows, double* least,
                       std::int32_t* row) {
    constexpr int kColumns = kEnds / kWide;
    Doubles best[kColumns];
    Longs found[kColumns];
    const Doubles none = {};
    for (int k = 0; k < kColumns; ++k) {
        best[k] = none + __builtin_inf();
        found[k] = (Longs)none;
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
            found[k] = less ? number : found[k];
        }
        number += 1;
    }
    for (int k = 0; k < kEnds; ++k) {
        least[k] = best[k / kWide][k % kWide];
        row[k] = static_cast<std::int32_t>(found[k / kWide][k % kWide]);
    }
}
