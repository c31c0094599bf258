// SRAM-Quantiles: stretches of up to 4096 elements, each sorted on its own in shared memory.
#pragma once

#include "block.cuh"
#include "sort.cuh"

namespace qmaps {

struct Stretches {
    const void* x;
    std::int64_t size;            // elements of a stretch
    std::int64_t rows;            // stretches
    const std::int64_t* below;    // of each quantile, the rank in a stretch
    const double* fraction;       // and how far it is to the next one
    std::int64_t count;           // of quantiles
    double* quantiles;            // of each stretch, times its size: rows of `count`
    double* sums;                 // over all stretches
    std::uint64_t* bad;           // elements that are NaN or infinite
};

// Blocks that a multiprocessor holds at once, as far as registers go without spills.
template <int kLog>
constexpr int kResident = kLog == kSortedBits ? 6 : 4;

// Each quantile of each stretch: 2^kLog is the smallest such number from `size` on, and as many
// stretches are sorted at once as fit.
template <class T, int kLog>
__global__ void __launch_bounds__(kThreads, kResident<kLog>) find_quantiles(const Stretches s) {
    __shared__ std::uint32_t shared[kSortWords];
    __shared__ std::uint32_t sums[kThreads / kWarp];
    constexpr int kTogether = kSorted >> kLog;
    const int thread = static_cast<int>(threadIdx.x);
    const int size = static_cast<int>(s.size);
    std::uint32_t bad = 0;
    for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kTogether; first < s.rows;
         first += static_cast<std::int64_t>(gridDim.x) * kTogether) {
        const T* x = static_cast<const T*>(s.x) + first * size;
        const int rows = static_cast<int>(s.rows - first < kTogether ? s.rows - first : kTogether);
        std::uint32_t key[kKeys];
#pragma unroll
        for (int k = 0; k < kKeys; ++k) {
            // A single stretch may be sorted from any order: neighbours read neighbours.
            const int place = kTogether == 1 ? k * kThreads + thread : thread * kKeys + k;
            const int row = place >> kLog, at = place & ((1 << kLog) - 1);
            const bool there = row < rows && at < size;
            const float value = there ? to_float(x[row * size + at]) : 0.0f;
            bad += (bits_of(value) & 0x7FFFFFFFu) >= kInfinityBits ? 1u : 0u;
            key[k] = there ? key_of(value) : 0xFFFFFFFFu;
        }
        sort_keys<kLog>(key, shared);
        share_keys(key, shared);
        double* to = s.quantiles + first * s.count;
        for (std::int64_t i = thread; i < rows * s.count; i += kThreads) {
            const std::int64_t row = kTogether == 1 ? 0 : i / s.count;
            const std::int64_t quantile = i - row * s.count;
            const int rank = static_cast<int>(s.below[quantile]);
            const int next = rank + 1 < size ? rank + 1 : rank;
            const int start = static_cast<int>(row) << kLog;
            const double low = of_key(shared[sorted_word(start + rank)]);
            const double high = of_key(shared[sorted_word(start + next)]);
            // The operations of qmaps.quantiles.
            to[i] = (low + (high - low) * s.fraction[quantile]) * static_cast<double>(size);
        }
        __syncthreads();
    }
    bad = block_sum(bad, sums);
    if (thread == 0 && bad) atomicAdd(s.bad, static_cast<std::uint64_t>(bad));
}

constexpr int kColumns = kWarp;      // quantiles that a block of threads adds up
constexpr int kRowsEach = 16;        // rows that a thread reads ahead
constexpr int kRowsAhead = kRowsEach * (kThreads / kWarp);

// Add the rows to the sums one after another, as the reference does: the sums of the block are
// those of its first warp, and what bounds its speed is the latency of a sum. The other warps
// fetch the next rows meanwhile.
__global__ void add_rows(const Stretches s) {
    __shared__ double row[kRowsAhead][kColumns];
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    for (std::int64_t block = blockIdx.x; block * kColumns < s.count; block += gridDim.x) {
        const std::int64_t column = block * kColumns + lane;
        const bool there = column < s.count;
        double next[kRowsEach];
        const auto fetch = [&](std::int64_t first) {
#pragma unroll
            for (int k = 0; k < kRowsEach; ++k) {
                const std::int64_t at = first + k * (kThreads / kWarp) + warp;
                next[k] = there && at < s.rows ? s.quantiles[at * s.count + column] : 0.0;
            }
        };
        fetch(0);
        double sum = there ? s.sums[column] : 0.0;
        for (std::int64_t first = 0; first < s.rows; first += kRowsAhead) {
#pragma unroll
            for (int k = 0; k < kRowsEach; ++k) row[k * (kThreads / kWarp) + warp][lane] = next[k];
            __syncthreads();
            fetch(first + kRowsAhead);
            const std::int64_t left = s.rows - first;
            if (warp == 0)
                for (int r = 0; r < kRowsAhead && r < left; ++r) sum += row[r][lane];
            __syncthreads();
        }
        if (warp == 0 && there) s.sums[column] = sum;
    }
}

}  // namespace qmaps
