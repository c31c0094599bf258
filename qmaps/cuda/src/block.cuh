// What the threads of a block find out together. Every thread of the block calls these.
#pragma once

#include "language.cuh"

namespace qmaps {

// The largest of `value` over each group of kLanes neighbouring threads, a power of two up to the
// whole block. `shared` has a place for each warp.
template <int kLanes>
QMAPS_INLINE std::uint32_t largest_over(std::uint32_t value, std::uint32_t* shared) {
    static_assert(kLanes >= 1 && kLanes <= kThreads && (kLanes & (kLanes - 1)) == 0);
    for (int lane = (kLanes < kWarp ? kLanes : kWarp) / 2; lane > 0; lane /= 2) {
        const std::uint32_t other = __shfl_xor_sync(kAll, value, lane);
        value = other > value ? other : value;
    }
    if (kLanes <= kWarp) return value;
    constexpr int kGroup = kLanes > kWarp ? kLanes / kWarp : 1;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    if (threadIdx.x % kWarp == 0) shared[warp] = value;
    __syncthreads();
    const int first = warp / kGroup * kGroup;
    for (int w = 0; w < kGroup; ++w)
        value = shared[first + w] > value ? shared[first + w] : value;
    __syncthreads();  // before `shared` is used again
    return value;
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

// What they are in log2; see qmaps.normalize.logblock.
QMAPS_INLINE void finish_ends(const LogEnds& ends, float& low, float& high) {
    const float most = number_of(ends.high);
    const float least = ends.low == 0 || ends.low == kAll ? most : number_of(~ends.low);
    low = log_end(least);
    high = log_end(least < 0.0f ? least : most);
}

// The sum of the numbers of each group of kLanes neighbouring threads, a power of two up to the whole
// block: the first half of all is added to the second, until one is left; a thread has kUnit
// neighbours. `shared` has a place for each thread where a group is more than a warp.
template <int kLanes>
QMAPS_INLINE double tree_sum(double* x, double* shared) {
    constexpr int kGroup = kLanes > kWarp ? kLanes / kWarp : 1;
    if constexpr (kGroup > 1) {
        const int lane = static_cast<int>(threadIdx.x) % kWarp;
        const int first = static_cast<int>(threadIdx.x) / (kGroup * kWarp) * kGroup;
        for (int j = 0; j < kUnit; ++j) {
            shared[threadIdx.x] = x[j];
            __syncthreads();
            double part[kGroup];
            for (int w = 0; w < kGroup; ++w) part[w] = shared[(first + w) * kWarp + lane];
            for (int half = kGroup / 2; half > 0; half /= 2)
                for (int w = 0; w < half; ++w) part[w] += part[w + half];
            x[j] = part[0];
            __syncthreads();
        }
    }
    for (int lane = (kLanes < kWarp ? kLanes : kWarp) / 2; lane > 0; lane /= 2)
        for (int j = 0; j < kUnit; ++j) x[j] += __shfl_xor_sync(kAll, x[j], lane);
    for (int half = kUnit / 2; half > 0; half /= 2)
        for (int j = 0; j < half; ++j) x[j] += x[j + half];
    return x[0];
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
