// What the threads of a block find out together. Every thread of the block calls these.
#pragma once

#include "language.cuh"

namespace qmaps {

// `value` combined over each group of kLanes neighbouring threads, a power of two up to the whole
// block, in any order. `shared` has a place for each warp.
template <int kLanes, class Combine>
QMAPS_INLINE std::uint32_t combined_over(std::uint32_t value, std::uint32_t* shared,
                                         const Combine& combine) {
    static_assert(kLanes >= 1 && kLanes <= kThreads && (kLanes & (kLanes - 1)) == 0);
    for (int lane = (kLanes < kWarp ? kLanes : kWarp) / 2; lane > 0; lane /= 2)
        value = combine(value, __shfl_xor_sync(kAll, value, lane));
    if (kLanes <= kWarp) return value;
    constexpr int kGroup = kLanes > kWarp ? kLanes / kWarp : 1;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    if (threadIdx.x % kWarp == 0) shared[warp] = value;
    __syncthreads();
    const int first = warp / kGroup * kGroup;
    value = shared[first];
    for (int w = 1; w < kGroup; ++w) value = combine(value, shared[first + w]);
    __syncthreads();  // before `shared` is used again
    return value;
}

template <int kLanes>
QMAPS_INLINE std::uint32_t largest_over(std::uint32_t value, std::uint32_t* shared) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if constexpr (kLanes == kWarp) return __reduce_max_sync(kAll, value);
#endif
    return combined_over<kLanes>(value, shared, [](std::uint32_t one, std::uint32_t other) {
        return other > one ? other : one;
    });
}

template <int kLanes>
QMAPS_INLINE std::uint32_t sum_over(std::uint32_t value, std::uint32_t* shared) {
    return combined_over<kLanes>(
        value, shared, [](std::uint32_t one, std::uint32_t other) { return one + other; });
}

// The quantile of the values but zeros of each group of kLanes neighbouring threads, of kUnit each
// that are positive and finite, or zero; see qmaps.normalize.logblock. `shared` as above.
template <int kLanes>
QMAPS_INLINE float quantile_over(const float* x, double quantile, std::uint32_t* shared) {
    std::uint32_t order[kUnit];  // zeros come last
    std::uint32_t count = 0;
    for (int j = 0; j < kUnit; ++j) {
        order[j] = x[j] == 0.0f ? kAll : bits_of(x[j]);
        count += x[j] == 0.0f ? 0 : 1;
    }
    count = sum_over<kLanes>(count, shared);
    const double place = static_cast<double>(count == 0 ? 0 : count - 1) * quantile;
    const auto rank = static_cast<std::uint32_t>(place);
    const auto fraction = static_cast<float>(place - static_cast<double>(rank));
    // The largest number with at most `rank` values below it, bit by bit: the value of that rank.
    std::uint32_t found = 0;
    for (std::uint32_t bit = 1u << 30; bit > 0; bit >>= 1) {
        std::uint32_t below = 0;
        for (int j = 0; j < kUnit; ++j) below += order[j] < (found | bit) ? 1 : 0;
        found |= sum_over<kLanes>(below, shared) <= rank ? bit : 0;
    }
    // The next one is equal, or the smallest of those above; the complement of the last is 0.
    std::uint32_t upto = 0, above = 0;
    for (int j = 0; j < kUnit; ++j) {
        upto += order[j] <= found ? 1 : 0;
        above = order[j] > found && ~order[j] > above ? ~order[j] : above;
    }
    upto = sum_over<kLanes>(upto, shared);
    above = largest_over<kLanes>(above, shared);
    const float a = float_of(found);
    const float b = upto > rank + 1 || above == 0 ? a : float_of(~above);
    return count == 0 ? 0.0f : a + fraction * (b - a);
}

// The ends of the log2 range of some numbers while they are looked at: the largest, in an order in
// which numbers are, NaN above all; and the smallest but zeros, in the same order from above.
struct LogEnds {
    std::uint32_t high = 0, low = 0;
};

QMAPS_INLINE void widen_ends(LogEnds& ends, float x) {
    const std::uint32_t bits = bits_of(x);
    const std::uint32_t order = is_nan(x) ? kAll : bits >> 31 ? ~bits : bits | 0x80000000u;
    const std::uint32_t down = is_nan(x) ? kAll : x == 0.0f ? 0 : ~order;
    ends.high = order > ends.high ? order : ends.high;
    ends.low = down > ends.low ? down : ends.low;
}

QMAPS_INLINE float number_of(std::uint32_t order) {
    return order == kAll ? float_of(0x7FC00000u)
           : order >> 31 ? float_of(order & 0x7FFFFFFFu)
                         : float_of(~order);
}

// Whether all numbers are finite and none is below 0.
QMAPS_INLINE bool is_positive(const LogEnds& ends) {
    const float most = number_of(ends.high);
    const float least = ends.low == 0 ? most : number_of(~ends.low);
    return least >= 0.0f && most <= kLargest;
}

// What they are in log2; see qmaps.normalize.logblock.
QMAPS_INLINE void finish_ends(const LogEnds& ends, float& low, float& high) {
    const float most = number_of(ends.high);
    const float least = ends.low == 0 || ends.low == kAll ? most : number_of(~ends.low);
    low = log_end(least);
    high = log_end(least < 0.0f ? least : most);
}

// The sum over the block, always in the same order. `shared` has a place for each warp. Only
// thread 0's answer counts.
template <class T>
QMAPS_INLINE T block_sum(T value, T* shared) {
    for (int lane = kWarp / 2; lane > 0; lane /= 2) value += __shfl_xor_sync(kAll, value, lane);
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
    __syncthreads();
    T total = 0;
    if (threadIdx.x == 0)
        for (int w = 0; w < kThreads / kWarp; ++w) total += shared[w];
    __syncthreads();
    return total;
}

// Or flags of all threads into memory, with few writes.
QMAPS_INLINE void raise_flags(int* to, int flags) {
    for (int lane = kWarp / 2; lane > 0; lane /= 2) flags |= __shfl_xor_sync(kAll, flags, lane);
    if (flags && threadIdx.x % kWarp == 0) atomicOr(to, flags);
}

// Raise a maximum in memory; magnitudes order as their bits do. Looking first spares most writes.
QMAPS_INLINE void raise_to(float* slot, std::uint32_t bits) {
    auto* shared = reinterpret_cast<std::uint32_t*>(slot);
    if (*static_cast<volatile std::uint32_t*>(shared) < bits) atomicMax(shared, bits);
}

}  // namespace qmaps
