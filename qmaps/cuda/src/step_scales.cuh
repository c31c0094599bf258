// Scales of optimizer states that span more than a block.
#pragma once

#include "scales.cuh"

namespace qmaps {

// A piece of the scales of a state whose scales span more than a block.
struct MultiBlockItem {
    std::int32_t parameter;
    std::int16_t state, part;  // state kMaxStates stands for slices
    std::int64_t chunk;
};

struct MultiBlock {
    const Parameter* parameters;
    const MultiBlockItem* items;
    std::int64_t count;
    const int* skip;
};

template <class Work>
QMAPS_INLINE void in_wide(const MultiBlock& multi_block, const Work& work) {
    if (*multi_block.skip) return;
    for (std::int64_t i = blockIdx.x; i < multi_block.count; i += gridDim.x) {
        const MultiBlockItem item = multi_block.items[i];
        const Parameter& parameter = multi_block.parameters[item.parameter];
        const Scales& scales = item.state == kMaxStates ? parameter.factored.slices
                                                        : parameter.state[item.state].scales;
        work(scales, item.part, item.chunk);
    }
}

__global__ void read_step_grids(const MultiBlock multi_block) {
    __shared__ std::uint32_t shared[kThreads / kWarp];
    in_wide(multi_block, [&](const Scales& scales, int p, std::int64_t chunk) {
        if (chunk == 0) read_grid(scales.part[p], shared);
    });
}
__global__ void find_step_ends(const MultiBlock multi_block) {
    __shared__ std::uint32_t shared[kThreads / kWarp];
    in_wide(multi_block, [&](const Scales& scales, int p, std::int64_t chunk) {
        find_ends(scales, p, chunk, shared);
    });
}
__global__ void new_step_grids(const MultiBlock multi_block) {
    __shared__ std::uint32_t shared[kThreads / kWarp];
    in_wide(multi_block, [&](const Scales& scales, int p, std::int64_t chunk) {
        if (chunk == 0) new_grid(scales, p, shared);
    });
}
__global__ void round_step_scales(const MultiBlock multi_block) {
    in_wide(multi_block, [&](const Scales& scales, int p, std::int64_t chunk) {
        round_scales(scales, p, chunk);
    });
}
__global__ void commit_step_scales(const MultiBlock multi_block) {
    in_wide(multi_block, [&](const Scales& scales, int p, std::int64_t chunk) {
        commit_scales(scales, p, chunk);
    });
}

}  // namespace qmaps
