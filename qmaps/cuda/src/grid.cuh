// Sums of update errors by pair of codes.
//
// There are up to 65,536 cells, and a few of them often hold most elements. Each cell's errors are
// to be added in an order that does not depend on the launch, so no atomics: elements are sorted by
// cell (stably, so that within a cell they keep the tensor's order), a warp adds up a piece of one
// cell, and a thread adds the pieces of a cell. Work is shared out evenly however the elements fall
// on cells, where a table for each block of threads would take gigabytes, and blocks that each own
// some cells would read all codes again and again and wait for the fullest cell.
#pragma once

#include "updates.cuh"

namespace qmaps {

constexpr int kCellSums = 3;
constexpr std::int64_t kPiece = 4096;  // elements of a piece of a cell

struct CellErrors {
    Updates updates;
    std::int64_t begin, end;  // a segment of the tensor; it begins with a tile
    std::int64_t columns;     // codes of the second moment
    std::int32_t* cells;      // of each element of the segment
    BothErrors* errors;       // the same
};

struct Cells {
    const BothErrors* errors;
    const std::int64_t* order;   // elements of the segment by cell
    const std::int64_t* ends;    // where in this order each cell ends
    const std::int64_t* pieces;  // how many pieces it and all cells before have
    std::int64_t count;          // of cells
    double* parts;               // kCellSums of each piece
    double* elements;            // by cell, to which all that follows is added
    double* absolute;
    double* relative;
    double* nonzero;
};

// The cell and the errors of each element of the segment.
__global__ void __launch_bounds__(kThreads) find_cells(const CellErrors given) {
    __shared__ MomentValues values;
    const Updates& updates = given.updates;
    load_values(updates, values);
    for (std::int64_t tile = given.begin / kTile + blockIdx.x; tile * kTile < given.end;
         tile += gridDim.x) {
        const Place place = place_of(tile, given.end);
        if (place.count == 0) continue;
        const std::uint64_t first = moment_codes(updates.first, place);
        const std::uint64_t second = moment_codes(updates.second, place);
        float exact[kUnit], m[kUnit], v[kUnit];
        load_unit(updates.exact + place.at, place.count, exact);
        decode_moment(updates.first, values.first, place, first, m);
        decode_moment(updates.second, values.second, place, second, v);
        const std::int64_t to = place.at - given.begin;
        for (int j = 0; j < kUnit; ++j) {
            if (j >= place.count) continue;
            const auto row = static_cast<std::int32_t>(first >> (8 * j) & 0xFFu);
            const auto column = static_cast<std::int32_t>(second >> (8 * j) & 0xFFu);
            given.cells[to + j] = row * static_cast<std::int32_t>(given.columns) + column;
            given.errors[to + j] = errors_of(exact[j], adam_update(m[j], v[j], updates.eps));
        }
    }
}

// The first of `count` ascending numbers that is larger.
QMAPS_INLINE std::int64_t first_above(const std::int64_t* numbers, std::int64_t count,
                                      std::int64_t number) {
    std::int64_t low = 0;
    while (count > 0) {
        const std::int64_t half = count / 2;
        const bool above = numbers[low + half] > number;
        low = above ? low : low + half + 1;
        count = above ? half : count - half - 1;
    }
    return low;
}

// The sums of each piece; a warp takes one at a time.
__global__ void __launch_bounds__(kThreads) sum_cells(const Cells given) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const std::int64_t total = given.pieces[given.count - 1];
    for (std::int64_t piece = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
         piece < total; piece += std::int64_t{gridDim.x} * kWarps) {
        const std::int64_t cell = first_above(given.pieces, given.count, piece);
        const std::int64_t before = cell > 0 ? given.pieces[cell - 1] : 0;
        const std::int64_t begin = (cell > 0 ? given.ends[cell - 1] : 0) + (piece - before) * kPiece;
        const std::int64_t rest = given.ends[cell] - begin;
        const std::int64_t end = begin + (rest < kPiece ? rest : kPiece);
        double absolute = 0.0, relative = 0.0, nonzero = 0.0;
        for (std::int64_t i = begin + lane; i < end; i += kWarp) {
            const BothErrors errors = given.errors[given.order[i]];
            absolute += errors.absolute;
            relative += errors.relative;
            nonzero += bits_of(errors.relative) == bits_of(-0.0) ? 0.0 : 1.0;
        }
        absolute = warp_sum(absolute);
        relative = warp_sum(relative);
        nonzero = warp_sum(nonzero);
        if (lane == 0) {
            double* to = given.parts + piece * kCellSums;
            to[0] = absolute;
            to[1] = relative;
            to[2] = nonzero;
        }
    }
}

// Add the pieces of each cell, in their order.
__global__ void __launch_bounds__(kThreads) add_cells(const Cells given) {
    for (std::int64_t cell = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; cell < given.count;
         cell += std::int64_t{gridDim.x} * kThreads) {
        const std::int64_t begin = cell > 0 ? given.pieces[cell - 1] : 0;
        double sums[kCellSums] = {};
        for (std::int64_t piece = begin; piece < given.pieces[cell]; ++piece)
            for (int k = 0; k < kCellSums; ++k) sums[k] += given.parts[piece * kCellSums + k];
        const std::int64_t elements = given.ends[cell] - (cell > 0 ? given.ends[cell - 1] : 0);
        given.elements[cell] += static_cast<double>(elements);
        given.absolute[cell] += sums[0];
        given.relative[cell] += sums[1];
        given.nonzero[cell] += sums[2];
    }
}

}  // namespace qmaps
