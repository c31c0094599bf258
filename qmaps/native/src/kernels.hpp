// The kernels of one instruction set. Every set is compiled from the same source.
#pragma once

#include "sums.hpp"
#include "task.hpp"

namespace qmaps {

inline constexpr int kEnds = 64;  // columns that least_sums works on

struct Kernels {
    const char* name;
    // Encode [begin, end) in blocks that carry their own scales; returns Flags.
    int (*quantize_local)(const QuantizeTask&, std::int64_t begin, std::int64_t end, Scratch&);
    // What [begin, end) holds; returns Flags.
    int (*scan)(const QuantizeTask&, std::int64_t begin, std::int64_t end, Scratch&);
    // Fold |x| over [begin, end) into maxima[part][index]; returns Flags.
    int (*maxima)(const QuantizeTask&, std::int64_t begin, std::int64_t end, float* const* maxima,
                  Scratch&);
    // Encode [begin, end) under the codec's fresh scales.
    void (*quantize_fresh)(const QuantizeTask&, std::int64_t begin, std::int64_t end, Scratch&);
    void (*dequantize)(const DequantizeTask&, std::int64_t begin, std::int64_t end, Scratch&);
    // One optimizer step over [begin, end) of a parameter.
    void (*step_range)(const ParamTask&, std::int64_t begin, std::int64_t end, StepScratch&);
    // Fold the new states' magnitudes into maxima[state][part][index].
    void (*step_maxima)(const ParamTask&, std::int64_t begin, std::int64_t end,
                        float* const* const* maxima, StepScratch&);
    Rules rules;
    // The 256 scales of an 8-bit grid between two ends, 0 first.
    void (*eight_bit_grid)(float low, float high, float* grid);
    // As quantize_local and quantize_fresh, with the sums of [begin, end) and how often each code
    // occurs; where the codec has no place for codes, they are dropped.
    int (*measure_local)(const QuantizeTask&, std::int64_t begin, std::int64_t end, ErrorSums&,
                         CodeCounts&, Scratch&);
    void (*measure_fresh)(const QuantizeTask&, std::int64_t begin, std::int64_t end, ErrorSums&,
                          CodeCounts&, Scratch&);
    // Errors of Adam updates over [begin, end): all of them, or summed by pairs of codes.
    void (*update_errors)(const UpdateTask&, std::int64_t begin, std::int64_t end,
                          std::uint32_t* absolute, std::uint32_t* relative, UpdateSums&,
                          UpdateBins&, StepScratch&);
    std::int64_t (*gather_bin)(const std::uint32_t* bits, std::int64_t count, std::uint32_t bin,
                               std::uint32_t* to);
    void (*update_grid)(const UpdateTask&, std::int64_t begin, std::int64_t end, CellSums* cells,
                        StepScratch&);
    // Costs of intervals that end at first to first + kEnds - 1 and start at each i < rows.
    void (*interval_costs)(const double* w, const double* wx, const double* wxx,
                           std::int64_t count, std::int64_t first, std::int64_t rows,
                           double* cost);
    // The least of before[i] + cost[i * kEnds + k] over i < rows for each k, and its first i.
    void (*least_sums)(const double* before, const double* cost, std::int64_t rows, double* least,
                       std::int32_t* row);
};

const Kernels& portable_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();

// The best that the processor has, or what the environment variable QMAPS_ISA names.
const Kernels& kernels();

// Names of those that this build and this processor have, best first.
std::vector<const char*> available_isas();

}  // namespace qmaps
