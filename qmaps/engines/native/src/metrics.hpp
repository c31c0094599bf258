// Error metrics: a tensor encoded and measured at once, and Adam updates of decoded moments.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "engine.hpp"

namespace qmaps {

struct Measured {
    int flags = 0;  // Flags; with any, the rest means nothing
    ErrorSums sums;
};

// Encode, decode and sum up errors tile by tile; `counts` gets how often each code occurs. Codes
// are stored where the codec has a place for them. Partial sums are added in the tensor's order.
Measured measure(QuantizeTask& task, std::int64_t* counts, int threads);

// Mean, nearest-rank quantiles and maximum of errors.
struct ErrorSummary {
    std::int64_t count = 0;
    double sum = 0;
    std::vector<float> ranks;  // of the levels asked for, then the maximum; empty without elements
};

// Errors of the updates of one or more parameters, of which it keeps 8 bytes an element.
class UpdateErrors {
  public:
    void clear();
    void add(UpdateTask& task, int threads);

    // Of |u - w|, and of |u - w| / |u| over elements where u is not 0.
    std::array<ErrorSummary, 2> summaries(const std::vector<double>& levels, int threads) const;
    std::int64_t numel() const { return numel_; }
    std::int64_t collapsed() const { return sums_.collapsed; }

  private:
    void reserve(std::int64_t numel);

    // Absolute errors, then relative ones.
    std::unique_ptr<std::uint32_t[]> bits_[2];
    std::vector<std::int64_t> bins_[2];
    std::int64_t numel_ = 0, room_ = 0;
    UpdateSums sums_;
};

// Sums by pair of codes, added to four arrays of (first size * second size). Segments of fixed
// length are summed by themselves and added in their order.
void add_update_grid(UpdateTask& task, double* count, double* absolute, double* relative,
                     double* nonzero, int threads);

}  // namespace qmaps
