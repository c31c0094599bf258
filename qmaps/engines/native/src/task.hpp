// What the kernels work on: plain descriptions of tensors, scales and roundings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codebook.hpp"
#include "rule.hpp"

namespace qmaps {

inline constexpr int kMaxParts = 8;
inline constexpr std::int64_t kMaxLocal = 8192;  // elements of scratch per state and thread
inline constexpr std::int64_t kTile = 1024;      // elements worked on at a time, where free to choose
inline constexpr std::int64_t kChunk = 16384;      // elements that a thread takes at a time
inline constexpr std::int64_t kStepChunk = 65536;  // the same of a step, which reads ahead

inline constexpr std::int64_t kDrawsMore = 256;  // random numbers that are drawn together

inline constexpr std::int64_t kNormChunk = 4096;   // elements whose squares are added first

inline constexpr std::int64_t kCached = std::int64_t{1} << 22;  // elements, more than caches hold

inline constexpr std::int64_t kUndone = std::int64_t{1} << 20;  // elements whose codes caches keep

// One list of scales: element i takes number (i / divisor) % count. So blocks have their size as
// divisor, rows and columns the product of the dimensions after theirs.
struct Part {
    std::int64_t divisor;
    std::int64_t count;
    int array;  // which of the tensor's scale arrays holds it
    int ends;   // which holds the ends of its grid, or its level (kScaleE4m3); -1 for neither
    int kind = kScaleFloat32;  // the format of scales that are no codes of a log2 grid
};

// An element's scale is the minimum over the parts. With `log` there are two parts instead, the
// lower and the upper ends of each block's range in log2; or, with a `ratio`, the scale of each
// block and the exponent that expands its range to this ratio.
struct Geometry {
    std::vector<Part> parts;
    bool log = false;
    float ratio = 0.0f;
    int arrays = 0;
    double quantile = 0.0;  // of its block's values that a lower end is; 0 is the smallest

    // Whether a block's scales can only be computed from all of its elements at once.
    bool whole_blocks() const { return log; }

    // Whether the only scale is 1, but for tensors of zeros and those that are not finite.
    bool ones() const { return !parts.empty() && parts[0].kind == kScaleOne; }

    // Elements of a block that can be encoded without looking beyond it; 0 where a scale spans
    // more, or more than the scratch holds.
    std::int64_t local_block(std::int64_t numel) const {
        if (parts.empty() || (!log && parts.size() > 1) || parts[0].ends >= 0 || ones()) return 0;
        const Part& part = parts[0];
        const bool comes_again = part.divisor * part.count < numel;
        // Whole bytes of codes can take eight blocks of an odd size.
        return !comes_again && part.divisor * (part.divisor % 8 ? 8 : 1) <= kMaxLocal
                   ? part.divisor
                   : 0;
    }
};

// Names the random bits of one tensor; see qmaps.algebra.philox.
struct NoiseKey {
    std::uint32_t key0 = 0, key1 = 0;
    std::uint32_t word1 = 0, word2 = 0, word3 = 0;
    std::uint64_t offset = 0;

    // The same in this step, whose upper bits stand above the purpose.
    void take(std::uint64_t step) {
        word3 = static_cast<std::uint32_t>(step);
        // A key that is spread stays so.
        key1 = (key1 & 0x800000FFu) | static_cast<std::uint32_t>(step >> 32 << 8);
    }
};

// Where one part's scales are read from: floats, or codes and the 256 scales they stand for. Where
// each element takes another scale, there are floats.
struct PartView {
    std::int64_t divisor = 1;
    std::int64_t count = 1;
    const float* values = nullptr;
    const std::uint8_t* codes = nullptr;
    const float* grid = nullptr;
};

struct ScaleView {
    PartView part[kMaxParts];
    int parts = 0;
    bool log = false;
    bool power = false;  // with `log`: scales and exponents
};

// One quantized tensor: its stored codes and scales.
struct Codec {
    const Codebook* codebook = nullptr;
    const Geometry* geometry = nullptr;
    bool stochastic = false;
    NoiseKey noise;
    std::uint8_t* packed = nullptr;
    void* arrays[kMaxParts] = {};
    std::int64_t block = 0;           // geometry->local_block()
    float* fresh[kMaxParts] = {};     // new maxima of each part where block == 0
    std::vector<float> grids;         // 256 scales for each part that has ends, as stored
    // Scales that are stored in other formats, as floats; of 8-bit parts only where each element
    // takes another.
    std::vector<float> decoded;
    std::vector<float> fresh_memory;  // what `fresh` points into
    std::vector<std::uint8_t> fresh_codes;  // of the same scales, where they have 8 bits
};

struct QuantizeTask {
    Codec codec;
    const void* x = nullptr;
    Dtype dtype = Dtype::kFloat32;
    std::int64_t numel = 0;
    bool check = false;            // look for NaN, infinity and, where refused, negative numbers
    bool keep = false;             // and if there are some, write nothing
    bool refuse_negative = false;
    std::uint8_t* undo = nullptr;  // takes the codes that are overwritten; on a cache line
};

struct DequantizeTask {
    Codec codec;
    void* y = nullptr;
    Dtype dtype = Dtype::kFloat32;
    std::int64_t numel = 0;
};

// Cache lines that will be read next: some now, and then others. A core can only wait for a few at
// a time, so they are asked for bit by bit, between other work, `unit` lines for every 64 elements
// that are worked on.
struct Ahead {
    const char* now = nullptr;
    std::int64_t lines = 0;
    const char* then = nullptr;
    std::int64_t later = 0;
    int unit = 0;
};

// Memory of one thread. Arrays lie on cache lines: registers that cross them take twice as long to
// read and write. They also lie whole pages apart, here and in StepScratch, so that an element has
// the same place in its page in each: processors take a load for one of what was just stored at
// that place in another page, and wait for it. Stores of an element then meet only loads of itself.
struct alignas(64) Scratch {
    float x[kMaxLocal];
    float n[kMaxLocal];
    float scale[kMaxLocal];
    float low[kTile];
    float high[kTile];
    alignas(64) std::uint16_t draws[kTile + 8 + kDrawsMore];
    alignas(64) std::uint8_t codes[kMaxLocal + 64];
    alignas(64) std::uint8_t bounds[kTile];
    std::uint16_t wide[kMaxLocal + 64];  // codes of more than 8 bits
    Ahead ahead;
    bool streams = false;  // codes are stored past the caches
};

// One state of one parameter: quantized, or floats where the codec has no codebook.
struct StateTask {
    Codec codec;
    float* data = nullptr;
    // Where some scales depend on other processes: memory outside for the new scales of each part.
    // The caller changes them between both halves of a step, and stores them.
    std::vector<float*> shared;

    // Whether the new codes are known before the scale is: they are those under 1. `fresh` then
    // takes the largest magnitude meanwhile.
    bool under_one() const { return codec.codebook && codec.geometry->ones() && shared.empty(); }
};

// A state that has fewer elements than its parameter.
struct FactoredState {
    Codec codec;                 // where it is quantized
    float* data = nullptr;       // its numbers: as stored, or decoded
    std::vector<float> decoded;  // room for them
    std::int64_t size = 0;
};

// Those of one parameter.
struct FactoredStates {
    std::vector<FactoredState> state;
    // Of a product: its matrices, and the factors of all rows and of all columns.
    std::int64_t rows = 1, columns = 1;
    std::vector<float> row_factor, column_factor;
    // Of a minimum: each dimension's slices as a part, and their maxima.
    Geometry slices;
    Codec maxima;
};

// One parameter of an optimizer step.
struct ParamTask {
    const Rule* rule = nullptr;
    void* p = nullptr;
    const void* g = nullptr;
    Dtype p_dtype = Dtype::kFloat32;
    Dtype g_dtype = Dtype::kFloat32;
    std::int64_t numel = 0;
    float scalars[kMaxScalars] = {};
    bool p_stochastic = false;
    NoiseKey p_noise;
    void* rounded = nullptr;  // takes the new values rounded to bfloat16
    void* remainder = nullptr;  // of a bfloat16 parameter whose values are more precise
    int remainder_bytes = 0;    // per element: 1 or 2
    // Parameters and gradients that are codes have a codebook here, and no memory above.
    Codec p_codec;
    Codec g_codec;
    StateTask state[kMaxStates];
    FactoredStates factored;
    std::int64_t stretch = kTile;  // elements at a time: whole blocks of every state
    bool two_passes = false;       // for scales that span more than a block
};

struct alignas(64) StepScratch {
    float p[kMaxLocal];
    float g[kMaxLocal];
    float state[kMaxStates][kMaxLocal];
    double squares[2][kNormChunk / 2];
    Scratch scratch;
};
static_assert(sizeof(float[kMaxLocal]) % 4096 == 0 && offsetof(StepScratch, scratch) % 4096 == 0);

}  // namespace qmaps
