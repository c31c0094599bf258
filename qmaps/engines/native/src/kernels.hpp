// The kernels of one instruction set. Every set is compiled from the same source.
#pragma once

#include "least_squares.hpp"
#include "selection.hpp"
#include "sums.hpp"
#include "task.hpp"

namespace qmaps {

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
    // One optimizer step over [begin, end) of a parameter; what rules leave in the place of a
    // minimum is folded into slices[part].
    void (*step_range)(const ParamTask&, std::int64_t begin, std::int64_t end,
                       float* const* slices, StepScratch&);
    // Fold the new states' magnitudes into maxima[state][part][index].
    void (*step_maxima)(const ParamTask&, std::int64_t begin, std::int64_t end,
                        float* const* const* maxima, StepScratch&);
    // Sums of squares of the parameter's and of the measured elements of chunk number `chunk`.
    void (*step_norms)(const ParamTask&, std::int64_t chunk, double* sums, StepScratch&);
    // Sums of what means are taken of, over each row and over each column of a tile of at most
    // kColumnChunk rows and kRowChunk columns; `at` is its first element.
    void (*factored_sums)(const ParamTask&, std::int64_t at, std::int64_t rows, std::int64_t columns,
                      double* row_sums, double* column_sums, StepScratch&);
    // The sum of a chunk of a row.
    double (*row_sum)(const float* x, std::int64_t count);
    Rules rules;
    // The 256 scales that codes stand for, of a ScaleKind: a log2 grid between two ends, 0 first;
    // or the numbers of e4m3 times a level.
    void (*scale_grid)(int kind, const float* ends, float* grid);
    // Raise scales to a log2 grid, or round them to numbers of e4m3; `codes` are their places.
    void (*onto_grid)(int kind, const float* ends, const float* grid, float* scales,
                      std::int64_t count, std::uint8_t* codes);
    // Scales of a ScaleKind: as floats; rounded to it; and as they are stored.
    void (*widen_scales)(int kind, const void* stored, std::int64_t count, float* scales);
    void (*round_scales)(int kind, float* scales, std::int64_t count);
    void (*store_scales)(int kind, const float* scales, std::int64_t count, void* stored);
    Selection selection;
    MetricKernels metrics;
    LeastSquares least_squares;
    // For benchmarks; see kernels/limits.hpp.
    void (*divisions)(std::int64_t count);
    void (*roots)(std::int64_t count);
    bool (*shuffles)(std::int64_t count);
    // How many of these 64 codes take.
    int (*decode_shuffles)(const Codebook&);
    int (*encode_shuffles)(const Codebook&, bool stochastic);
};

const Kernels& portable_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& neon_kernels();

// The best that the processor has, or what the environment variable QMAPS_ISA names.
const Kernels& kernels();

// Names of those that this build and this processor have, best first.
std::vector<const char*> available_isas();

}  // namespace qmaps
