// Codebooks of least weighted squared error; see qmaps.maps.lloyd, whose float64 operations these
// repeat one by one.
#pragma once

#include <cstdint>
#include <vector>

namespace qmaps {

// Sorted data and prefix sums over it: `x` holds `count` values, the others one more, from 0.
struct Cells {
    double* x;
    double* w;
    double* wx;
    double* wxx;
    std::int64_t count;
};

// Fill in `cells` from finite values; without weights (null) each weighs 1. Equal values keep
// their order.
void sort_cells(const float* values, const double* weights, const Cells& cells);

// Where the `size` intervals end that join `count` - 1 cells at least cost, the first of equal
// ones; w, wx, wxx are prefix sums at the cells' ends. Last interval first.
std::vector<std::int64_t> partition(const double* w, const double* wx, const double* wxx,
                                    std::int64_t count, int size);

// Lloyd's iteration on an ascending codebook, in place, until the error stops falling.
void refine(const Cells& cells, double* codebook, int size, int sweeps, double tolerance);

}  // namespace qmaps
