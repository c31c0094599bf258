// Errors of Adam updates computed from decoded moments; native/src/kernels/updates.hpp has the same
// for the processor. One compiled kernel serves all pairs of formats: widths and scales are looked
// up as it runs, for decoding, unlike encoding, is not what these kernels spend their time on.
#pragma once

#include "sums.cuh"

namespace qmaps {

constexpr int kUpdateSums = 2;

// A moment: codes, or floats.
struct Moment {
    const std::uint8_t* packed;  // null: floats
    const float* data;
    const float* values;         // of codes, kMaxCodes of them
    std::int32_t bits;           // of a code
    std::int32_t log;            // whether scales are the ends of log2 ranges
    Scales scales;
};

// Moments after quantizing, and before.
struct Updates {
    const float* exact;  // the update before
    std::int64_t numel;
    float eps;
    std::int32_t unused;
    Moment first, second;
};

// What the errors of all parameters add up to.
struct UpdateTotals {
    double sums[kUpdateSums];     // of absolute and of relative errors, each rounded to float32
    std::uint64_t nonzero;        // elements whose exact update is not 0: those with a relative error
    std::uint64_t collapsed;
};

struct UpdateErrors {
    Updates updates;
    const float* v;      // the second moment before quantizing
    float* absolute;     // errors, one for each element
    float* relative;     // the same; -0 where the exact update is 0
    double* parts;       // kUpdateSums of each chunk
    UpdateTotals* totals;
};

// What the codes of both moments stand for, in shared memory.
struct MomentValues {
    float first[kMaxCodes], second[kMaxCodes];
};

// Every thread of the block.
QMAPS_INLINE void load_values(const Updates& updates, MomentValues& to) {
    for (int i = static_cast<int>(threadIdx.x); i < kMaxCodes; i += kThreads) {
        if (updates.first.packed) to.first[i] = updates.first.values[i];
        if (updates.second.packed) to.second[i] = updates.second.values[i];
    }
    __syncthreads();
}

// Codes of any width, a byte each.
QMAPS_INLINE std::uint64_t moment_codes(const Moment& moment, const Place& place) {
    const std::uint8_t* from = moment.packed + place.at / kUnit * moment.bits;
    const int bytes = (place.count * moment.bits + 7) / 8;
    std::uint64_t stream = 0;
    for (int k = 0; k < kUnit; ++k)
        if (k < bytes) stream |= static_cast<std::uint64_t>(from[k]) << (8 * k);
    return parted_bits(stream, moment.bits);
}

QMAPS_INLINE void decode_moment(const Moment& moment, const float* values, const Place& place,
                                std::uint64_t codes, float* x) {
    for (int j = 0; j < kUnit; ++j) x[j] = values[codes >> (8 * j) & 0xFFu];
    float one[kUnit] = {}, other[kUnit] = {};
    if (moment.log) {
        const Part* ends = moment.scales.part;
        in_part(ends[0], place.at, place.count,
                [&](int j, std::int64_t index) { one[j] = ends[0].values[index]; });
        in_part(ends[1], place.at, place.count,
                [&](int j, std::int64_t index) { other[j] = ends[1].values[index]; });
        for (int j = 0; j < kUnit; ++j) x[j] = log_value(x[j], one[j], other[j]);
    } else {
        unit_scales<false>(moment.scales, place.at, place.count, one);
        for (int j = 0; j < kUnit; ++j) x[j] = x[j] * one[j];
    }
}

QMAPS_INLINE void read_moment(const Moment& moment, const float* values, const Place& place,
                              float* x) {
    if (moment.packed)
        decode_moment(moment, values, place, moment_codes(moment, place), x);
    else
        load_unit(moment.data + place.at, place.count, x);
}

// |u - w|, and |u - w| / |u|, which is -0 where u is 0: such elements are left out. NaN is positive
// in both, so that errors order as their bits do, those left out after all others.
struct BothErrors {
    double absolute, relative;
};

QMAPS_INLINE BothErrors errors_of(float exact, float approximate) {
    const double u = exact, error = fabs(u - static_cast<double>(approximate));
    return {error, exact != 0.0f ? fabs(error / fabs(u)) : -0.0};
}

QMAPS_INLINE float positive_nan(float value) {
    return is_nan(value) ? float_of(0x7FC00000u) : value;
}

// Errors of one parameter, to memory and in sums.
__global__ void __launch_bounds__(kThreads) update_errors(const UpdateErrors given) {
    __shared__ MomentValues values;
    __shared__ double shared[kUpdateSums * kWarps];
    const Updates& updates = given.updates;
    load_values(updates, values);
    std::uint32_t nonzero = 0, collapses = 0;
    for (std::int64_t chunk = blockIdx.x; chunk < chunks_of(updates.numel); chunk += gridDim.x) {
        double sums[kUpdateSums] = {};
        in_tiles(chunk, updates.numel, [&](const Place& place) {
            float exact[kUnit], exact_v[kUnit], m[kUnit], v[kUnit];
            load_unit(updates.exact + place.at, place.count, exact);
            load_unit(given.v + place.at, place.count, exact_v);
            read_moment(updates.first, values.first, place, m);
            read_moment(updates.second, values.second, place, v);
            float absolute[kUnit] = {}, relative[kUnit] = {};
            for (int j = 0; j < kUnit; ++j) {
                if (j >= place.count) continue;
                const BothErrors errors = errors_of(exact[j], adam_update(m[j], v[j], updates.eps));
                absolute[j] = positive_nan(static_cast<float>(errors.absolute));
                relative[j] = positive_nan(static_cast<float>(errors.relative));
                sums[0] += static_cast<double>(absolute[j]);
                sums[1] += static_cast<double>(relative[j]);
                nonzero += exact[j] != 0.0f ? 1 : 0;
                collapses += collapsed(m[j], v[j], exact_v[j]) ? 1 : 0;
            }
            store_unit(absolute, given.absolute + place.at, place.count);
            store_unit(relative, given.relative + place.at, place.count);
        });
        block_sums<kUpdateSums>(sums, shared, given.parts + chunk * kUpdateSums);
    }
    add_count(&given.totals->nonzero, nonzero);
    add_count(&given.totals->collapsed, collapses);
}

}  // namespace qmaps
