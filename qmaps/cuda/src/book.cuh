// A codebook in the block's shared memory.
#pragma once

#include "layout.cuh"

namespace qmaps {

// How codes are chosen and scaled.
//   kBits         of a code
//   kBlock        elements that share a scale which is theirs alone, a power of two from kUnit to
//                 kTile; 0: scales lie as the tensor's parts say
//   kLog          log2 ranges instead of scales; with a kBlock
//   kStochastic   rounding
template <int kBits_, int kBlock_, bool kLog_, bool kStochastic_>
struct Format {
    static constexpr bool kQuantized = true;
    static constexpr int kBits = kBits_;
    static constexpr int kBlock = kBlock_;
    static constexpr bool kLog = kLog_;
    static constexpr bool kStochastic = kStochastic_;
};

// A state that stays in float32.
struct Plain {
    static constexpr bool kQuantized = false;
    static constexpr int kBlock = 1;
};

struct alignas(16) SharedBook {
    float value[kMaxCodes];
    float limit[2 * kMaxCodes];
    std::uint8_t guess[kMaxGuesses];
    std::int32_t shift, first, top, steps, negative, last;
};

// Every thread of the block; others may read it after a __syncthreads().
QMAPS_INLINE void load_book(const Book& book, bool lower, SharedBook& to) {
    const Search& search = lower ? book.lower : book.nearest;
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < kMaxCodes; i += kThreads) to.value[i] = book.values[i];
    if (search.limit == nullptr) return;
    for (int i = thread; i < 2 * kMaxCodes; i += kThreads) to.limit[i] = search.limit[i];
    for (int i = thread; i < search.buckets + search.negative; i += kThreads) to.guess[i] = search.guess[i];
    if (thread == 0) {
        to.shift = search.shift;
        to.first = search.first;
        to.top = search.buckets - 1;
        to.negative = search.negative;
        to.steps = search.steps;
        to.last = static_cast<std::int32_t>(book.size) - 1;
    }
}

// The number of limits below n, which is not NaN.
QMAPS_INLINE int search_code(const SharedBook& book, float n) {
    const std::uint32_t bits = bits_of(n);
    const bool below = bits >> 31 != 0;
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    int bucket = static_cast<int>(magnitude >> book.shift) - book.first;
    bucket = bucket < 0 || (below && book.negative == 0) ? 0 : bucket;
    bucket = bucket > book.top ? book.top : bucket;
    const int code = book.guess[bucket + (below ? book.negative : 0)];
    return refined(book.limit, code, book.steps, n);
}

}  // namespace qmaps
