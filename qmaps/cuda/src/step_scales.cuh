// Scales of optimizer states that span more than a block.
#pragma once

#include "scales.cuh"

namespace qmaps {

// A piece of the scales of a state whose scales span more than a block.
struct WideItem {
    std::int32_t parameter;
    std::int16_t state, part;  // state kMaxStates stands for slices
    std::int64_t chunk;
};

struct Wide {
    const Parameter* parameters;
    const WideItem* items;
    std::int64_t count;
    const int* skip;
};

template <class Work>
QMAPS_INLINE void in_wide(const Wide& wide, const Work& work) {
    if (*wide.skip) return;
    for (std::int64_t i = blockIdx.x; i < wide.count; i += gridDim.x) {
        const WideItem item = wide.items[i];
        const Parameter& parameter = wide.parameters[item.parameter];
        const Scales& scales = item.state == kMaxStates ? parameter.sides.slices
                                                        : parameter.state[item.state].scales;
        work(scales, item.part, item.chunk);
    }
}

__global__ void read_step_grids(const Wide wide) {
    __shared__ std::uint32_t shared[kThreads / kWarp];
    in_wide(wide, [&](const Scales& scales, int p, std::int64_t chunk) {
        if (chunk == 0) read_grid(scales.part[p], shared);
    });
}
__global__ void find_step_ends(const Wide wide) {
    __shared__ std::uint32_t shared[kThreads / kWarp];
    in_wide(wide, [&](const Scales& scales, int p, std::int64_t chunk) {
        find_ends(scales, p, chunk, shared);
    });
}
__global__ void new_step_grids(const Wide wide) {
    __shared__ std::uint32_t shared[kThreads / kWarp];
    in_wide(wide, [&](const Scales& scales, int p, std::int64_t chunk) {
        if (chunk == 0) new_grid(scales, p, shared);
    });
}
__global__ void round_step_scales(const Wide wide) {
    in_wide(wide, [&](const Scales& scales, int p, std::int64_t chunk) {
        round_scales(scales, p, chunk);
    });
}
__global__ void commit_step_scales(const Wide wide) {
    in_wide(wide, [&](const Scales& scales, int p, std::int64_t chunk) {
        commit_scales(scales, p, chunk);
    });
}

}  // namespace qmaps
