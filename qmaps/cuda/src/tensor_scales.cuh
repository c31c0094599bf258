// Scales of one tensor that span more than a block.
#pragma once

#include "scales.cuh"

namespace qmaps {

// Call work(p, chunk) for the chunks of every part, shared out among the blocks of threads.
template <class Work>
QMAPS_INLINE void in_chunks(const Scales& scales, const Work& work) {
    for (int p = 0; p < static_cast<int>(scales.parts); ++p)
        for (std::int64_t chunk = blockIdx.x; chunk * kScalesChunk < scales.part[p].count;
             chunk += gridDim.x)
            work(p, chunk);
}

// What lies between find_maxima and encode where scales are stored in 8 bits, and after it.
__global__ void find_tensor_ends(const Tensor t) {
    __shared__ std::uint32_t shared[kThreads / kWarp];
    in_chunks(t.scales, [&](int p, std::int64_t chunk) { find_ends(t.scales, p, chunk, shared); });
}
__global__ void new_tensor_grids(const Tensor t) {
    __shared__ std::uint32_t shared[kThreads / kWarp];
    new_grid(t.scales, static_cast<int>(blockIdx.x), shared);
}
__global__ void round_tensor_scales(const Tensor t) {
    in_chunks(t.scales, [&](int p, std::int64_t chunk) { round_scales(t.scales, p, chunk); });
}
__global__ void commit_tensor_scales(const Tensor t) {
    in_chunks(t.scales, [&](int p, std::int64_t chunk) { commit_scales(t.scales, p, chunk); });
}
// What comes before decode there.
__global__ void read_tensor_grids(const Tensor t) {
    __shared__ std::uint32_t shared[kThreads / kWarp];
    read_grid(t.scales.part[blockIdx.x], shared);
}

}  // namespace qmaps
