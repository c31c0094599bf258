// Scales that span more than a block: from maxima to what is stored.
#pragma once

#include "block.cuh"
#include "layout.cuh"

namespace qmaps {

// The first of the neighbouring parts that share the ends of part p.
QMAPS_INLINE int first_sharing(const Scales& scales, int p) {
    while (p > 0 && scales.part[p - 1].ends == scales.part[p].ends) --p;
    return p;
}

// The 256 scales of an 8-bit grid by their code. Every thread of the block; `grid` can be read
// after it.
QMAPS_INLINE void fill_grid(float low, float high, float* grid, std::uint32_t* shared) {
    static_assert(kThreads >= kGridSteps + 2);
    const int thread = static_cast<int>(threadIdx.x);
    float scale = 0.0f;
    if (bits_of(high) >= kInfinityBits) {
        scale = float_of(0x7FC00000u);
        if (thread > 0 && thread <= kGridSteps + 1) grid[thread] = scale;
    } else {
        if (high != 0.0f && thread <= kGridSteps) {
            const float low_log2 = log2_of(low);
            scale = grid_scale(thread, low, high, low_log2, log2_of(high) - low_log2);
            scale = scale > low ? scale : low;
        }
        // The largest so far; all are positive, and order as their bits do.
        std::uint32_t most = bits_of(scale);
        for (int lane = 1; lane < kWarp; lane *= 2) {
            const std::uint32_t before = __shfl_up_sync(kAll, most, lane);
            if (thread % kWarp >= lane && before > most) most = before;
        }
        if (thread % kWarp == kWarp - 1) shared[thread / kWarp] = most;
        __syncthreads();
        for (int w = 0; w < thread / kWarp; ++w) most = shared[w] > most ? shared[w] : most;
        if (thread <= kGridSteps) grid[thread + 1] = float_of(most);
    }
    if (thread == 0) grid[0] = 0.0f;
    __syncthreads();
}

// The same of scales in E4M3.
QMAPS_INLINE void fill_e4m3_grid(float level, float* grid) {
    static_assert(kThreads == 256);
    grid[threadIdx.x] = scale_of_e4m3(threadIdx.x, level);
    __syncthreads();
}

// See qmaps.normalize.e4m3: of the largest scale, which may be infinity or NaN.
QMAPS_INLINE float level_of(float largest) {
    constexpr float kNormal = 1.17549435e-38f;
    const float level = largest / 448.0f;
    return largest != 0.0f && level < kNormal ? kNormal : level;
}

// The first code from 1 on whose scale is at least `scale`, 256 where there is none.
QMAPS_INLINE int code_above(const float* grid, float scale) {
    int code = 1;
    for (int some = 128; some > 0; some /= 2)
        if (code + some <= 256 && grid[code + some - 1] < scale) code += some;
    return code;
}

// Where the pieces of Part::grid lie: the scales that stored codes stand for, those of new codes,
// bits of the largest new scale and of the complement of the smallest, and their ends.
constexpr int kNewGrid = 256, kFound = 512, kNewEnds = 514, kGridFloats = 516;
constexpr std::int64_t kScalesChunk = 4096;  // scales that a block of threads takes at a time

// The scales that stored codes stand for. Every thread of the block, as in all that follows.
QMAPS_INLINE void read_grid(const Part& part, std::uint32_t* shared) {
    if (!part.ends) return;
    if (part.kind == kScaleE4m3) {
        fill_e4m3_grid(part.ends[0], part.grid);
    } else {
        fill_grid(part.ends[0], part.ends[1], part.grid, shared);
    }
}

// The ends of new scales, of all parts that share them. Scales are not negative: they order as
// their bits do, NaN above all.
QMAPS_INLINE void find_ends(const Scales& scales, int p, std::int64_t chunk,
                            std::uint32_t* shared) {
    const Part& part = scales.part[p];
    if (!part.ends) return;
    std::uint32_t high = 0, low = 0;
    for (std::int64_t i = chunk * kScalesChunk + threadIdx.x;
         i < part.count && i < (chunk + 1) * kScalesChunk; i += kThreads) {
        const std::uint32_t bits = bits_of(part.fresh[i]);
        high = bits > high ? bits : high;
        if (bits != 0) low = ~bits > low ? ~bits : low;
    }
    high = largest_over<kThreads>(high, shared);
    low = largest_over<kThreads>(low, shared);
    if (threadIdx.x == 0) {
        float* found = scales.part[first_sharing(scales, p)].grid + kFound;
        raise_to(found, high);
        raise_to(found + 1, low);
    }
}

// The grid between them; for the first of the parts that share it.
QMAPS_INLINE void new_grid(const Scales& scales, int p, std::uint32_t* shared) {
    const Part& part = scales.part[p];
    if (!part.ends || first_sharing(scales, p) != p) return;
    const std::uint32_t high = bits_of(part.grid[kFound]), low = bits_of(part.grid[kFound + 1]);
    const float most = float_of(high);
    if (part.kind == kScaleE4m3) {
        const float level = level_of(most);
        if (threadIdx.x == 0) part.grid[kNewEnds] = level;
        fill_e4m3_grid(level, part.grid + kNewGrid);
        return;
    }
    const float least = high > kInfinityBits ? most : low == 0 ? 0.0f : float_of(~low);
    if (threadIdx.x == 0) {
        part.grid[kNewEnds] = least;
        part.grid[kNewEnds + 1] = most;
    }
    fill_grid(least, most, part.grid + kNewGrid, shared);
}

// What a scale is stored as on this grid: codes of a log2 grid round up.
QMAPS_INLINE int grid_code(const Part& part, const float* grid, float level, float scale) {
    if (part.kind == kScaleE4m3) return scale_to_e4m3(scale, level);
    // Under a grid of NaN, as the reference has it, all but zero take the last code.
    const bool finite = (bits_of(grid[255]) & 0x7FFFFFFFu) < kInfinityBits;
    const int code = finite ? code_above(grid, scale) : 255;
    return scale == 0.0f ? 0 : code < 255 ? code : 255;
}

// The ends of log2 ranges, of both parts.
QMAPS_INLINE void round_log_ends(const Scales& scales, std::int64_t chunk) {
    const Part &lower = scales.part[0], &upper = scales.part[1];
    for (std::int64_t i = chunk * kScalesChunk + threadIdx.x;
         i < lower.count && i < (chunk + 1) * kScalesChunk; i += kThreads) {
        LogEnds ends;
        ends.low = bits_of(lower.fresh[i]);
        ends.high = bits_of(upper.fresh[i]);
        finish_ends(ends, lower.fresh[i], upper.fresh[i]);
    }
}

// Round new scales to what they are stored as.
QMAPS_INLINE void round_scales(const Scales& scales, int p, std::int64_t chunk) {
    const Part& part = scales.part[p];
    if (scales.log) {
        if (p == 0) round_log_ends(scales, chunk);
        return;
    }
    const float* given = part.ends ? scales.part[first_sharing(scales, p)].grid : nullptr;
    if (!given && part.kind == kScaleFloat32) return;
    for (std::int64_t i = chunk * kScalesChunk + threadIdx.x;
         i < part.count && i < (chunk + 1) * kScalesChunk; i += kThreads) {
        const float scale = part.fresh[i];
        if (given) {
            const float* grid = given + kNewGrid;
            const int code = grid_code(part, grid, given[kNewEnds], scale);
            part.made[i] = static_cast<std::uint16_t>(code);
            part.fresh[i] = grid[code];
        } else if (part.kind == kScaleOne) {
            part.fresh[i] = one_of(scale);
        } else {
            const int kind = static_cast<int>(part.kind);
            part.made[i] = scale_bits(kind, scale);
            part.fresh[i] = scale_of_bits(kind, part.made[i]);
        }
    }
}

// Store the scales that new codes were made with.
QMAPS_INLINE void commit_scales(const Scales& scales, int p, std::int64_t chunk) {
    const Part& part = scales.part[p];
    const std::int64_t begin = chunk * kScalesChunk;
    if (part.ends && begin == 0 && threadIdx.x < (part.kind == kScaleE4m3 ? 1 : 2))
        part.ends[threadIdx.x] =
            scales.part[first_sharing(scales, p)].grid[kNewEnds + threadIdx.x];
    for (std::int64_t i = begin + threadIdx.x; i < part.count && i < begin + kScalesChunk;
         i += kThreads) {
        if (part.values) {
            part.values[i] = part.fresh[i];
        } else if (part.codes) {
            part.codes[i] = static_cast<std::uint8_t>(part.made[i]);
        } else {
            put_scale_bits(static_cast<int>(part.kind), part.made[i], part.stored, i);
        }
    }
}

}  // namespace qmaps
