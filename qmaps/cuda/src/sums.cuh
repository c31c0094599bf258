// Float64 sums in an order that depends on the number of elements alone: each chunk of a tensor is
// summed by one block of threads, whichever that is, and the chunks' sums are added by one more
// block. Numbers of elements and maxima have no order to keep and go through atomics.
#pragma once

#include "quantize.cuh"

namespace qmaps {

constexpr int kChunkTiles = 4;                                          // of a chunk
constexpr std::int64_t kSumsChunk = std::int64_t{kChunkTiles} * kTile;  // its elements

QMAPS_INLINE std::int64_t chunks_of(std::int64_t numel) { return (numel + kSumsChunk - 1) / kSumsChunk; }

// Call work(place) for the tiles of a chunk, with this thread's elements.
template <class Work>
QMAPS_INLINE void in_tiles(std::int64_t chunk, std::int64_t numel, const Work& work) {
#pragma unroll 1
    for (int i = 0; i < kChunkTiles; ++i) {
        const std::int64_t tile = chunk * kChunkTiles + i;
        if (tile * kTile < numel) work(place_of(tile, numel));
    }
}

// The sum over a warp, the same in all its threads.
template <class T>
QMAPS_INLINE T warp_sum(T value) {
    for (int lane = kWarp / 2; lane > 0; lane /= 2) value += __shfl_xor_sync(kAll, value, lane);
    return value;
}

// Several sums over the block, each to its place in memory. `shared` has kWarps places for each.
// Every thread of the block.
template <int kCount>
QMAPS_INLINE void block_sums(const double* sums, double* shared, double* to) {
    const int thread = static_cast<int>(threadIdx.x);
    for (int k = 0; k < kCount; ++k) {
        const double sum = warp_sum(sums[k]);
        if (thread % kWarp == 0) shared[k * kWarps + thread / kWarp] = sum;
    }
    __syncthreads();
    if (thread < kCount) {
        double total = 0.0;
        for (int w = 0; w < kWarps; ++w) total += shared[thread * kWarps + w];
        to[thread] = total;
    }
    __syncthreads();  // before `shared` is used again
}

// Add what the threads of a warp counted to a number in memory. Every thread of the warp.
QMAPS_INLINE void add_count(std::uint64_t* to, std::uint32_t count) {
    const std::uint64_t total = warp_sum(static_cast<std::uint64_t>(count));
    if (threadIdx.x % kWarp == 0 && total > 0) atomicAdd(to, total);
}

QMAPS_INLINE std::uint64_t bits_of(double value) {
#if defined(__CUDA_ARCH__)
    return static_cast<std::uint64_t>(__double_as_longlong(value));
#else
    std::uint64_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
#endif
}

// Raise a maximum of numbers that are not negative in memory, where it lies as bits. Every thread of
// the warp.
QMAPS_INLINE void raise_largest(std::uint64_t* to, double value) {
    for (int lane = kWarp / 2; lane > 0; lane /= 2) {
        const double other = __shfl_xor_sync(kAll, value, lane);
        value = other > value ? other : value;
    }
    if (threadIdx.x % kWarp == 0) atomicMax(to, bits_of(value));
}

// What `add_parts` is given.
struct PartialSums {
    const double* parts;   // kCount sums of each chunk
    std::int64_t count;    // of chunks
    double* totals;        // kCount, to which they are added
};

// One block of threads.
template <int kCount>
__global__ void __launch_bounds__(kThreads) add_parts(const PartialSums given) {
    __shared__ double shared[kCount * kWarps], total[kCount];
    double sums[kCount] = {};
    for (std::int64_t i = threadIdx.x; i < given.count; i += kThreads)
        for (int k = 0; k < kCount; ++k) sums[k] += given.parts[i * kCount + k];
    block_sums<kCount>(sums, shared, total);
    if (threadIdx.x < kCount) given.totals[threadIdx.x] += total[threadIdx.x];
}

}  // namespace qmaps
