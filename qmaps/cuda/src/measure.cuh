// A tensor encoded, decoded and measured in one pass: what it decodes to is never stored.
#pragma once

#include "sums.cuh"

namespace qmaps {

constexpr int kErrorSums = 4;

// What is found; all zero at first. x is what was given, y what it decodes to.
struct Measured {
    double sums[kErrorSums];         // of |x - y|, (x - y)^2, x^2, and |x - y| / |x| where x != 0
    std::uint64_t largest;           // bits of the largest |x - y|; finite x leave no NaN
    std::uint64_t nonzero, zeroed;   // elements with x != 0, and those of them with y == 0
    std::int64_t flags;              // Flags
    std::uint64_t codes[kMaxCodes];  // how often each occurs
};

struct Measure {
    Tensor tensor;
    Measured* found;
    double* parts;   // kErrorSums of each chunk
};

// Errors of this thread's elements.
struct Errors {
    double largest = 0.0;
    std::uint32_t nonzero = 0, zeroed = 0;
};

QMAPS_INLINE void add_errors(const float* x, const float* y, int count, double* sums,
                             Errors& errors) {
    for (int j = 0; j < kUnit; ++j) {
        if (j >= count) continue;
        const double given = x[j], error = fabs(given - static_cast<double>(y[j]));
        sums[0] += error;
        sums[1] += error * error;
        sums[2] += given * given;
        if (x[j] != 0.0f) {
            sums[3] += error / fabs(given);
            ++errors.nonzero;
            errors.zeroed += y[j] == 0.0f ? 1 : 0;
        }
        errors.largest = error > errors.largest ? error : errors.largest;
    }
}

// What codes stand for that were just made.
template <class F>
QMAPS_INLINE void decode_under(const Book& codebook, const UnitScales& under,
                               const Codes<F::kBits>& codes, float* y) {
    for (int j = 0; j < kUnit; ++j)
        y[j] = value_under<F>(value_of(codebook, code_at(codes, j)), under, j);
}

// Codes go to memory where there is a place for them. Scales as for `encode`.
template <class T, class F>
__global__ void __launch_bounds__(kThreads, 3) measure(const Measure given) {
    __shared__ SharedBook codebooks;
    __shared__ std::uint32_t largest[kWarps];
    __shared__ double shared[kErrorSums * kWarps];
    // A table of its own for each warp: neighbours often share a code, and would wait for those of
    // other warps as well. Within a warp, the device adds up equal ones at once.
    __shared__ std::uint32_t counts[kWarps][kMaxCodes];
    const Tensor& t = given.tensor;
    const int thread = static_cast<int>(threadIdx.x);
    static_assert(kThreads == kMaxCodes);
    for (int w = 0; w < kWarps; ++w) counts[w][thread] = 0;
    load_book<F>(t.codebook, codebooks);
    const Book codebook{t.codebook, codebooks};
    __syncthreads();

    Errors errors;
    int flags = 0;
    for (std::int64_t chunk = blockIdx.x; chunk < chunks_of(t.numel); chunk += gridDim.x) {
        double sums[kErrorSums] = {};
        in_tiles(chunk, t.numel, [&](const Place& place) {
            float x[kUnit], y[kUnit];
            load_unit(static_cast<const T*>(t.x) + place.at, place.count, x);
            if (t.flags) flags |= flags_of(x, place.count, t.refuse_negative);
            UnitScales under;
            make_unit_scales<F>(t.scales, place.at, place.count, x, largest, under);
            const Codes<F::kBits> codes =
                encode_under<F>(codebook, under, t.noise, place.at, place.count, x);
            if (t.packed && place.count > 0)
                store_codes<F::kBits>(codes, t.packed, place.at, place.count);
            for (int j = 0; j < place.count; ++j)
                atomicAdd(&counts[thread / kWarp][code_at(codes, j)], 1u);
            decode_under<F>(codebook, under, codes, y);
            add_errors(x, y, place.count, sums, errors);
        });
        block_sums<kErrorSums>(sums, shared, given.parts + chunk * kErrorSums);
    }

    if (t.flags) raise_flags(t.flags, flags);
    add_count(&given.found->nonzero, errors.nonzero);
    add_count(&given.found->zeroed, errors.zeroed);
    raise_largest(&given.found->largest, errors.largest);
    __syncthreads();
    std::uint64_t count = 0;
    for (int w = 0; w < kWarps; ++w) count += counts[w][thread];
    if (count > 0) atomicAdd(&given.found->codes[thread], count);
}

}  // namespace qmaps
