// Cells of floats with the same leading bits, and the kernels that count and collect by them.
#pragma once

#include <cstdint>

namespace qmaps {

enum Dtype : int;

inline constexpr int kTopBits = 18;  // sign, exponent and 9 bits of mantissa
inline constexpr std::int64_t kTops = std::int64_t{1} << kTopBits;
inline constexpr int kMaxDigits = 16;

// Numbers the cells that matter from 1 on; all others are cell 0. The leading bits of a float are
// looked up digit by digit: tables[0][top bits], then tables[d][cell << widths[d] | digit d].
struct Cells {
    const std::uint32_t* tables[kMaxDigits] = {};
    int shifts[kMaxDigits] = {};  // of the digit in the float's bits
    int widths[kMaxDigits] = {};
    int digits = 0;
};

struct Selection {
    // Count the top bits of float32 elements, or all 16 bits of others, over [begin, end).
    void (*count_tops)(const void* x, Dtype, std::int64_t begin, std::int64_t end,
                       std::uint32_t* counts);
    // Count cell << width | digit, where the digit follows those that the cells are made of.
    void (*count_digits)(const void* x, std::int64_t begin, std::int64_t end, const Cells&,
                         int width, std::uint32_t* counts);
    // Copy the bits of elements in the cells above 0 to `to`, which has room for one more than all
    // of [begin, end); returns how many there are.
    std::int64_t (*collect)(const void* x, std::int64_t begin, std::int64_t end, const Cells&,
                            const std::uint8_t* wanted_tops, std::uint32_t* to);
    // Keys, which ascend as the floats do; returns how many are NaN or infinite.
    std::int64_t (*keys)(const void* x, Dtype, std::int64_t begin, std::int64_t count,
                         std::uint32_t* keys);
    // Sort keys with the help of `spare`; returns the one of both that they are in afterwards.
    std::uint32_t* (*sort)(std::uint32_t* keys, std::uint32_t* spare, std::int64_t count);
    float (*of_key)(std::uint32_t key);
    // weight * (the quantile at `fraction` between below and the next order statistic).
    void (*quantiles)(const std::uint32_t* sorted, std::int64_t size, const std::int64_t* below,
                      const double* fraction, std::int64_t count, double weight, double* to);
};

}  // namespace qmaps
