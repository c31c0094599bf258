// States that have fewer elements than their parameter; qmaps/engines/kernels/rules/factored.hpp.
#pragma once

#include "step.cuh"

namespace qmaps {

constexpr int kPerLane = kRowChunk / kRowLanes;  // columns of a tile
constexpr int kTileWarps = kThreads / kWarp;
static_assert(kRowLanes == kWarp && kColumnChunk == 2 * kWarp);

// The lanes as a balanced tree, the first half to the second; every lane has the sum.
QMAPS_INLINE double lanes_added(double value) {
    for (int half = kWarp / 2; half > 0; half /= 2) value += __shfl_xor_sync(kAll, value, half);
    return value;
}

// Sums that lie `apart` from each other, filled up with zeros, as a balanced tree; left in the first.
QMAPS_INLINE double added_apart(double* sums, std::int64_t count, std::int64_t apart) {
    std::int64_t half = 1;
    while (2 * half < count) half *= 2;
    for (; half > 0; half /= 2)
        for (std::int64_t k = 0; k < half && k + half < count; ++k)
            sums[k * apart] += sums[(k + half) * apart];
    return sums[0];
}

template <class R>
QMAPS_INLINE float blended_mean(float old, double sum, std::int64_t count, const float* c) {
    return R::blended(old, static_cast<float>(sum / static_cast<double>(count)), c);
}

// What a warp finds out about a tile of kColumnChunk rows and kRowChunk columns: a lane has the
// sums of every 32nd column and of every 32nd row.
struct TileSums {
    double column[kPerLane];
    double row[2];
};

template <class R, class G>
QMAPS_INLINE void add_tile(const G* g, std::int64_t rows, std::int64_t columns,
                           std::int64_t stride, float scale, const float* c, TileSums& sums) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int row = 0; row < static_cast<int>(rows); ++row) {
        const G* from = g + row * stride;
        double total = 0.0;
        for (int k = 0; k < kPerLane; ++k) {
            const int column = lane + k * kWarp;
            if (column >= columns) continue;
            const double x = R::squared(to_float(from[column]) / scale, c);
            total += x;
            sums.column[k] += x;
        }
        total = lanes_added(total);
        if (row % kWarp == lane) sums.row[row / kWarp] = total;
    }
}

// Statistics and factors of a matrix that is one tile.
template <class R>
QMAPS_INLINE void finish_tile(const FactoredStates& factored, std::int64_t matrix, const float* c,
                              const TileSums& sums) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const std::int64_t row = matrix * factored.rows, column = matrix * factored.columns;
    float statistic[2] = {};
    double total = 0.0;
    for (int k = 0; k < 2; ++k) {
        if (lane + k * kWarp >= factored.rows) continue;
        float* to = factored.slices.part[0].values + row + lane + k * kWarp;
        *to = statistic[k] = blended_mean<R>(*to, sums.row[k], factored.columns, c);
        total += statistic[k];
    }
    const float mean =
        static_cast<float>(lanes_added(total) / static_cast<double>(factored.rows));
    for (int k = 0; k < 2; ++k)
        if (lane + k * kWarp < factored.rows)
            factored.row_factor[row + lane + k * kWarp] = R::row_factor(relative(statistic[k], mean));
    for (int k = 0; k < kPerLane; ++k) {
        if (lane + k * kWarp >= factored.columns) continue;
        float* to = factored.slices.part[1].values + column + lane + k * kWarp;
        *to = blended_mean<R>(*to, sums.column[k], factored.rows, c);
        factored.column_factor[column + lane + k * kWarp] = R::column_factor(*to);
    }
}

QMAPS_INLINE std::int64_t chunks_of(std::int64_t count, std::int64_t chunk) {
    return (count + chunk - 1) / chunk;
}

// The sums of all tiles, by matrix, rows and columns; a warp takes one at a time. They lie by
// matrix, chunk of columns and row, and by matrix, chunk of rows and column.
template <class K>
__global__ void __launch_bounds__(kThreads) factored_sums(const Batch batch) {
    using R = typename K::Rule;
    if (*batch.skip) return;
    const float scale = batch.grad_scale ? *batch.grad_scale : 1.0f;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (std::int64_t i = std::int64_t{blockIdx.x} * kTileWarps + threadIdx.x / kWarp;
         i < batch.count; i += std::int64_t{gridDim.x} * kTileWarps) {
        const Item item = batch.items[i];
        const Parameter& parameter = batch.parameters[item.parameter];
        const FactoredStates& factored = parameter.factored;
        const std::int64_t across = chunks_of(factored.columns, kRowChunk);
        const std::int64_t down = chunks_of(factored.rows, kColumnChunk);
        const std::int64_t matrix = item.tile / (across * down);
        const std::int64_t row_chunk = item.tile / across % down, column_chunk = item.tile % across;
        const std::int64_t row = row_chunk * kColumnChunk, column = column_chunk * kRowChunk;
        const std::int64_t rows = factored.rows - row, columns = factored.columns - column;
        const auto* g =
            static_cast<const typename K::Gradients*>(batch.addresses[item.parameter].g) +
            (matrix * factored.rows + row) * factored.columns + column;
        TileSums sums = {};
        add_tile<R>(g, rows < kColumnChunk ? rows : kColumnChunk,
                    columns < kRowChunk ? columns : kRowChunk, factored.columns, scale,
                    parameter.scalars, sums);
        if (across * down == 1) {
            finish_tile<R>(factored, matrix, parameter.scalars, sums);
            continue;
        }
        double* row_sums = factored.row_sums + (matrix * across + column_chunk) * factored.rows + row;
        for (int k = 0; k < 2; ++k)
            if (lane + k * kWarp < rows) row_sums[lane + k * kWarp] = sums.row[k];
        double* column_sums =
            factored.column_sums + (matrix * down + row_chunk) * factored.columns + column;
        for (int k = 0; k < kPerLane; ++k)
            if (lane + k * kWarp < columns) column_sums[lane + k * kWarp] = sums.column[k];
    }
}

// The rows of a matrix of several tiles, by a block.
template <class R>
QMAPS_INLINE void finish_rows(const FactoredStates& factored, std::int64_t matrix, const float* c,
                              float* shared) {
    const std::int64_t across = chunks_of(factored.columns, kRowChunk);
    double* sums = factored.row_sums + matrix * across * factored.rows;
    float* statistics = factored.slices.part[0].values + matrix * factored.rows;
    for (std::int64_t row = threadIdx.x; row < factored.rows; row += kThreads)
        statistics[row] = blended_mean<R>(statistics[row], added_apart(sums + row, across, factored.rows),
                                          factored.columns, c);
    __syncthreads();
    // Their sums are needed no more: those of chunks of statistics take the place.
    const std::int64_t chunks = chunks_of(factored.rows, kRowChunk);
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (std::int64_t chunk = threadIdx.x / kWarp; chunk < chunks; chunk += kTileWarps) {
        double total = 0.0;
        for (int k = 0; k < kPerLane; ++k) {
            const std::int64_t row = chunk * kRowChunk + k * kWarp + lane;
            if (row < factored.rows) total += statistics[row];
        }
        total = lanes_added(total);
        if (lane == 0) sums[chunk] = total;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        *shared = static_cast<float>(added_apart(sums, chunks, 1) / static_cast<double>(factored.rows));
    __syncthreads();
    for (std::int64_t row = threadIdx.x; row < factored.rows; row += kThreads)
        factored.row_factor[matrix * factored.rows + row] =
            R::row_factor(relative(statistics[row], *shared));
    __syncthreads();  // before `shared` is used again
}

// What the sums of tiles come to: a tile of at least 0 is a matrix, whose rows are finished; one
// below 0 stands for kThreads columns, counted through all matrices from -1 down.
template <class K>
__global__ void __launch_bounds__(kThreads) finish_factored(const Batch batch) {
    using R = typename K::Rule;
    __shared__ float shared;
    if (*batch.skip) return;
    for (std::int64_t i = blockIdx.x; i < batch.count; i += gridDim.x) {
        const Item item = batch.items[i];
        const Parameter& parameter = batch.parameters[item.parameter];
        const FactoredStates& factored = parameter.factored;
        if (item.tile >= 0) {
            finish_rows<R>(factored, item.tile, parameter.scalars, &shared);
            continue;
        }
        const std::int64_t at = (-1 - std::int64_t{item.tile}) * kThreads + threadIdx.x;
        if (at >= parameter.numel / factored.rows) continue;
        const std::int64_t matrix = at / factored.columns;
        const std::int64_t down = chunks_of(factored.rows, kColumnChunk);
        double* sums = factored.column_sums + matrix * (down - 1) * factored.columns + at;
        float* to = factored.slices.part[1].values + at;
        *to = blended_mean<R>(*to, added_apart(sums, down, factored.columns), factored.rows,
                              parameter.scalars);
        factored.column_factor[at] = R::column_factor(*to);
    }
}

}  // namespace qmaps
