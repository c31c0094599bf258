// Codebooks of least weighted squared error; see qmaps.maps.lloyd, whose float64 operations these
// repeat one by one.
#pragma once

#include <cstdint>
#include <vector>

namespace qmaps {

inline constexpr int kEnds = 64;  // interval ends that kernels work on at a time

// The kernels of one instruction set; w, wx and wxx are prefix sums at the ends of cells.
struct LeastSquares {
    // cost[i * kEnds + k]: of the interval from end i to end first + k, for i < rows.
    void (*interval_costs)(const double* w, const double* wx, const double* wxx,
                           std::int64_t count, std::int64_t first, std::int64_t rows,
                           double* cost);
    // The least of before[i] + cost[i * kEnds + k] over i < rows for each k, and its first i.
    void (*least_sums)(const double* before, const double* cost, std::int64_t rows, double* least,
                       std::int32_t* row);
};

// Sorted data and prefix sums over it: `x` holds `count` values, the others one more, from 0.
struct SortedData {
    double* x;
    double* w;
    double* wx;
    double* wxx;
    std::int64_t count;
};

// Fill in `data` from finite values; without weights (null) each weighs 1. Equal values keep
// their order.
void sort_data(const float* values, const double* weights, const SortedData& data);

// Where the `size` intervals end that join `count` - 1 cells at least cost, the first of equal
// ones; w, wx, wxx are prefix sums at the cells' ends. Last interval first.
std::vector<std::int64_t> partition(const double* w, const double* wx, const double* wxx,
                                    std::int64_t count, int size);

// Lloyd's iteration on an ascending codebook, in place, until the error stops falling.
void refine(const SortedData& data, double* codebook, int size, int sweeps, double tolerance);

}  // namespace qmaps
