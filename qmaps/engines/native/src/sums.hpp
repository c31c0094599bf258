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
    double signed_error = 0;    // y - x
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
    std::int64_t collapsed = 0;   // v decodes to 0, though it is not 0, and m does not
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

// The kernels of one instruction set, each for elements [begin, end).
struct MetricKernels {
    // As Kernels::quantize_local and quantize_fresh, with sums and how often each code occurs;
    // where the codec has no place for codes, they are dropped.
    int (*measure_local)(const QuantizeTask&, std::int64_t begin, std::int64_t end, ErrorSums&,
                         CodeCounts&, Scratch&);
    void (*measure_fresh)(const QuantizeTask&, std::int64_t begin, std::int64_t end, ErrorSums&,
                          CodeCounts&, Scratch&);
    // Bits of the float32 errors, their sums, and their numbers by bin. Relative errors of
    // elements left out are 0x80000000.
    void (*update_errors)(const UpdateTask&, std::int64_t begin, std::int64_t end,
                          std::uint32_t* absolute, std::uint32_t* relative, UpdateSums&,
                          UpdateBins&, StepScratch&);
    // Copy those of `count` numbers that lie in `bin` to `to`, which has room for kLanes more than
    // `count`; returns how many they are.
    std::int64_t (*gather_bin)(const std::uint32_t* bits, std::int64_t count, std::uint32_t bin,
                               std::uint32_t* to);
    // Errors added to the cells of their codes: cell (first * columns + second).
    void (*update_grid)(const UpdateTask&, std::int64_t begin, std::int64_t end, CellSums* cells,
                        StepScratch&);
};

}  // namespace qmaps
