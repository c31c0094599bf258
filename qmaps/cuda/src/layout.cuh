// What kernels are given. qmaps/cuda/layout.py has the same structures; source.py compares them
// whenever a kernel is compiled.
#pragma once

#include "language.cuh"

namespace qmaps {

constexpr int kMaxParts = 8;
constexpr int kMaxStates = 4;
constexpr int kMaxScalars = 24;
constexpr int kMaxCodes = 256;
constexpr int kMaxGuesses = 4096;

// One list of scales: element i takes number (i / divisor) % count. An element's scale is the
// minimum over a tensor's lists; under a log2 range there are two, of lower and of upper ends.
struct Part {
    std::int64_t divisor;
    std::int64_t count;
    float* values;         // as stored in float32, or
    std::uint8_t* codes;   // as stored in 8 bits,
    float* ends;           // with the ends of their grid, or the level that they are multiples of;
    void* stored;          // in the format of `kind`, where they are no such codes
    float* grid;           // 256 scales by their code, a place for them
    float* fresh;          // the maxima from which new scales come; a place for them
    std::uint16_t* made;   // what is to be stored of new scales; a place for them
    std::int64_t kind;     // a ScaleKind
};

struct Scales {
    Part part[kMaxParts];
    std::int64_t parts;
    std::int64_t log;  // whether they are the ends of log2 ranges
    double quantile;   // of a block's values that a lower end is; 0 is the smallest
    double ratio;      // of the ranges that powers expand blocks to; 0 where there are none
};

// The limits between codes in a form for searching. A bucket of magnitudes is that of floats with
// the same bits from `shift` on; `guess` says for each, first of positive numbers and then, from
// place `negative` on, of negative ones, how many limits are below all of it, and 2^kSteps - 1 of
// the format more may be. Where no limit is negative, neither place nor buckets are there for such numbers.
struct Search {
    const float* limit;           // ascending, padded with infinity to 2 * kMaxCodes
    const std::uint8_t* guess;
    std::int32_t shift, first, buckets;
    std::int32_t negative;
    // Where no two limits share a cell, instead: the number of limits below the cell of each n from -1
    // to 1, whose number is the bits of `cell * n + cell`, a subnormal number.
    const std::uint8_t* cells;
    float cell;
    std::int32_t cell_count;
    // Above 8 bits instead of guesses: how many limits are below all floats whose upper 16 bits are
    // these, as numbers order.
    const std::uint16_t* below;
};

struct Codebook {
    const float* values;          // by code, kMaxCodes of them; above 8 bits of all that it can hold
    Search nearest;               // code of the nearest value
    Search lower;                 // code of the lower of the two neighbours
    std::int64_t size;
    std::int64_t ties;            // whether some values are equal
    std::int64_t half;            // the Dtype of 16 bits whose numbers the values are; else kFloat32
    std::int32_t zero, most;      // of that; see qmaps/engines/kernels/half_codes.hpp
    std::int32_t in_log;          // stochastic rounding is between positions in a log2 range
    float bend;                   // of stochastic rounding; see qmaps.maps.base.Map.bend
};

// Names the random bits of one tensor; see qmaps.algebra.philox.
struct Noise {
    std::uint32_t key0, key1;
    std::uint32_t word1, word2, word3;
    std::uint32_t unused;
    std::int64_t offset;
};

// One tensor to be encoded, decoded or measured.
struct Tensor {
    void* x;                // the elements
    std::uint8_t* packed;   // their codes; null where they are not wanted
    std::int64_t numel;
    int* flags;             // Flags are or-ed into it; null where nothing is checked
    std::int64_t refuse_negative;
    Scales scales;
    Codebook codebook;
    Noise noise;
};

// One state of one parameter: codes, or floats.
struct State {
    std::uint8_t* packed;
    float* data;
    Scales scales;
    Noise noise;
};

// States with fewer elements than their parameter; see qmaps/engines/kernels/rules/factored.hpp.
struct FactoredStates {
    Scales slices;              // of a minimum: as scales; of a product: `values` of rows, columns
    std::int64_t rows, columns; // of each matrix of a product, and further
    float* row_factor;          // places for the factors of all rows
    float* column_factor;       // and of all columns
    double* row_sums;           // places for the sums of tiles, where matrices have several
    double* column_sums;
};

// One parameter of an optimizer. `scalars` and `step` are set by `begin_step`.
struct Parameter {
    std::int64_t numel;
    float scalars[kMaxScalars];
    std::int64_t group;        // row of its scalars
    double* counter;           // its steps so far, as the optimizer's state has it
    float* product;            // of NAdam's momenta so far, likewise; or null
    double* sums;              // a place for sums of squares; see step_norms
    std::uint64_t step;        // the one that is taken
    std::int64_t skips;        // whether a gradient that is not finite stops the step
    void* remainder;           // of a bfloat16 parameter whose values are more precise; or null
    Noise noise;               // of rounding a bfloat16 parameter
    State state[kMaxStates];
    FactoredStates factored;
};

// Where a parameter and its gradient lie in this step.
struct Address {
    void* p;
    const void* g;
};

// A tile of a parameter.
struct Item {
    std::int32_t parameter;
    std::int32_t tile;
};

// A scalar of a rule: see qmaps.engines.step_scalars. `tensor`, if not null, holds `a` instead.
struct StepScalar {
    double a, b, c;
    const float* tensor;
    std::int64_t kind;
};

// Parameters of one kind: one rule, one choice of formats.
struct Batch {
    Parameter* parameters;
    const Address* addresses;
    const Item* items;
    std::int64_t count;           // of items
    const int* skip;              // not 0: the step is left out
    const float* grad_scale;      // what gradients are divided by; null for 1
    Codebook codebook[kMaxStates];
};

}  // namespace qmaps
