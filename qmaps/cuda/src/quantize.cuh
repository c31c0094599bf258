// Whole tensors to and from codes.
#pragma once

#include "codec.cuh"

namespace qmaps {

// The first element of this thread in a tile, and how many it has.
struct Place {
    std::int64_t at;
    int count;
};

QMAPS_INLINE Place place_of(std::int64_t tile, std::int64_t numel) {
    const std::int64_t at = tile * kTile + static_cast<std::int64_t>(threadIdx.x) * kUnit;
    const std::int64_t rest = numel - at;
    return {at, rest <= 0 ? 0 : rest < kUnit ? static_cast<int>(rest) : kUnit};
}

QMAPS_INLINE std::int64_t tiles_of(std::int64_t numel) { return (numel + kTile - 1) / kTile; }

QMAPS_INLINE int flags_of(const float* x, int count, bool refuse_negative) {
    int flags = 0;
    for (int j = 0; j < kUnit; ++j) {
        if (j >= count) continue;
        if ((bits_of(x[j]) & 0x7FFFFFFFu) >= kInfinityBits) flags |= kNonFinite;
        if (refuse_negative && x[j] < 0.0f) flags |= kNegative;
    }
    return flags;
}

// Look for what must not be there.
template <class T>
__global__ void scan(const Tensor t) {
    int flags = 0;
    for (std::int64_t tile = blockIdx.x; tile < tiles_of(t.numel); tile += gridDim.x) {
        const Place place = place_of(tile, t.numel);
        float x[kUnit];
        load_unit(static_cast<const T*>(t.x) + place.at, place.count, x);
        flags |= flags_of(x, place.count, t.refuse_negative);
    }
    raise_flags(t.flags, flags);
}

// Fold magnitudes into the maxima of every part.
template <class T>
__global__ void find_maxima(const Tensor t) {
    int flags = 0;
    for (std::int64_t tile = blockIdx.x; tile < tiles_of(t.numel); tile += gridDim.x) {
        const Place place = place_of(tile, t.numel);
        float x[kUnit];
        load_unit(static_cast<const T*>(t.x) + place.at, place.count, x);
        fold_unit(t.scales, place.at, place.count, x);
        flags |= flags_of(x, place.count, t.refuse_negative);
    }
    if (t.flags) raise_flags(t.flags, flags);
}

// Codes, and scales where they are those of blocks; else find_maxima and finish_scales came before.
template <class T, class F>
__global__ void encode(const Tensor t) {
    __shared__ SharedBook shared;
    __shared__ std::uint32_t largest[kWarps];
    const auto& codebook = book_of<F>(t.codebook, shared);
    if constexpr (F::kInShared) load_book<F>(t.codebook, shared);
    __syncthreads();
    int flags = 0;
    for (std::int64_t tile = blockIdx.x; tile < tiles_of(t.numel); tile += gridDim.x) {
        const Place place = place_of(tile, t.numel);
        float x[kUnit];
        load_unit(static_cast<const T*>(t.x) + place.at, place.count, x);
        if (t.flags) flags |= flags_of(x, place.count, t.refuse_negative);
        const Codes<F::kBits> codes =
            encode_unit<F>(codebook, t.scales, t.noise, place.at, place.count, x, largest);
        if (place.count > 0) store_codes<F::kBits>(codes, t.packed, place.at, place.count);
    }
    if (t.flags) raise_flags(t.flags, flags);
}

template <class T, class F>
__global__ void decode(const Tensor t) {
    __shared__ SharedBook shared;
    const auto& codebook = book_of<F>(t.codebook, shared);
    if constexpr (F::kInShared) load_book<F>(t.codebook, shared);
    __syncthreads();
    for (std::int64_t tile = blockIdx.x; tile < tiles_of(t.numel); tile += gridDim.x) {
        const Place place = place_of(tile, t.numel);
        const Codes<F::kBits> codes = load_codes<F::kBits>(t.packed, place.at, place.count);
        float x[kUnit];
        decode_unit<F>(codebook, t.scales, codes, place.at, place.count, x);
        store_unit(x, static_cast<T*>(t.x) + place.at, place.count);
    }
}

}  // namespace qmaps
