// What the error metrics sum up, in float64.
//
// Sums run over kLanes interleaved lanes, then over tiles and chunks in their order, so that they
// depend neither on the instruction set nor on the number of threads.
#pragma once

#include <cstdint>

#include "task.hpp"

namespace qmaps {

inline constexpr int kLanes = 16;

// Over the elements of one tensor; x what was given, y what it became.
struct ErrorSums {
    double absolute = 0;        // |x - y|
    double square = 0;          // (x - y)^2
    double signal = 0;          // x^2
    double relative = 0;        // |x - y| / |x| where x is not 0
    double largest = 0;         // maximum of |x - y|; means nothing where `absolute` is NaN
    std::int64_t nonzero = 0;   // x is not 0
    std::int64_t zeroed = 0;    // and y is
};

// How often each code occurs, in four tables that are added up at the end: neighbours often share
// their code, and would wait for each other in one.
struct CodeCounts {
    std::uint32_t table[4][kMaxCodes] = {};
};

// Adam updates of one parameter, exact ones and those of decoded moments.
struct UpdateTask {
    const float* exact = nullptr;  // m / (sqrt(v) + eps)
    const float* v = nullptr;      // the exact second moment
    StateTask first, second;       // the decoded moments
    float eps = 0;
    std::int64_t numel = 0;
};

// Errors are ordered by their bits; the upper ones choose a bin.
inline constexpr int kBinShift = 19;
inline constexpr int kBins = (0x80000000u >> kBinShift) + 1;  // the last for elements left out

struct UpdateSums {
    double absolute = 0;          // of errors |u - w|, each rounded to float32
    double relative = 0;          // of |u - w| / |u| where u is not 0, the same
    std::int64_t nonzero = 0;     // u is not 0
    std::int64_t collapsed = 0;   // v decodes to 0, though it is not, under a first moment that does not
};

// Numbers of errors by bin, in two tables for the same reason.
struct UpdateBins {
    std::uint32_t absolute[2][kBins] = {};
    std::uint32_t relative[2][kBins] = {};
};

// Sums of one pair of codes.
struct CellSums {
    double absolute, relative;
    std::int64_t count, nonzero;
};

}  // namespace qmaps
