// Order statistics of a tensor: exact, and averaged over chunks.
//
// Memory beside the tensor: 1 MiB to sort up to 2^17 elements; for more, 1 MiB a thread, 4 MiB of
// totals and tables, at most a quarter of the elements as float32, and some 400 bytes a rank. The
// first 8 MiB stay with the thread that calls.
#pragma once

#include "kernels.hpp"

namespace qmaps {

// A floating-point tensor.
struct Elements {
    const void* x;
    Dtype dtype;
    std::int64_t numel;
};

// Each of these returns how many elements are NaN or infinite; if there are some, what it wrote
// means nothing. Ranks are in [0, numel), in any order.

// values[i]: the element that ascending order has at ranks[i].
std::int64_t order_statistics(const Elements& x, const std::int64_t* ranks, std::int64_t count,
                              float* values, int threads);

// Add size * quantile i of every stretch of `size` elements to sums[i], stretch by stretch. The
// quantile lies at `fraction` between the order statistics `below` and below + 1. The size divides
// the number of elements.
std::int64_t add_quantiles(const Elements& x, std::int64_t size, const std::int64_t* below,
                           const double* fraction, std::int64_t count, double* sums, int threads);

}  // namespace qmaps
