// A codebook in the block's shared memory.
#pragma once

#include "layout.cuh"
#include "quick.cuh"

namespace qmaps {

// How codes are chosen and scaled.
//   kBits         of a code; kInShared: its codebook is copied to shared memory
//   kBlock        elements that share a scale which is theirs alone, a power of two from kUnit to
//                 kTile; 0: scales lie as the tensor's parts say
//   kLog          log2 ranges instead of scales
//   kStochastic   rounding
//   kSigned       some limits between codes are negative
//   kSteps        halvings that are left after the first guess of a search; kCells: the guess is that
//                 of a cell, and one comparison is left
//   kScaling      how the scale of a kBlock comes about
enum Scaling : int {
    kMaxima,     // the largest magnitude, in float32
    kFormatted,  // the largest magnitude, in the part's format
    kQuantile,   // of a log2 range: its lower end is a quantile
    kPowers,     // the largest magnitude, and an exponent under which the block's range grows
};
constexpr int kCells = -1;
template <int kBits_, int kBlock_, bool kLog_, bool kStochastic_, bool kSigned_, int kSteps_,
          Scaling kScaling_ = kMaxima>
struct Format {
    static constexpr bool kQuantized = true;
    static constexpr int kBits = kBits_;
    static constexpr bool kWide = kBits > 8;
    static constexpr bool kInShared = !kWide;
    static constexpr int kBlock = kBlock_;
    static constexpr bool kLog = kLog_;
    static constexpr bool kStochastic = kStochastic_;
    static constexpr bool kSigned = kSigned_;
    static constexpr int kSteps = kSteps_;
    static constexpr Scaling kScaling = kScaling_;
    static constexpr bool kInFormat = kScaling == kFormatted;
    // What is encoded lies between -1 and 1.
    static_assert(kSteps != kCells || (kInShared && kBlock > 0 && !kLog && kScaling == kMaxima));
};

// A state that stays in float32.
struct Plain {
    static constexpr bool kQuantized = false;
    static constexpr bool kWide = false;
    static constexpr bool kInShared = false;
    static constexpr int kBlock = 1;
};

// A value and how far the next one is above it; infinity after the last.
struct alignas(8) Gap {
    float low, size;
};

struct alignas(16) SharedBook {
    float value[kMaxCodes];
    Gap gap[kMaxCodes];  // for stochastic rounding alone
    float limit[2 * kMaxCodes];
    std::uint8_t guess[kMaxGuesses];
};

// The tables of a codebook, and the codebook for its numbers, which are cheaper to read there.
struct Book {
    const Codebook& codebook;
    const SharedBook& shared;
};

// Every thread of the block; others may read it after a __syncthreads().
template <class F>
QMAPS_INLINE void load_book(const Codebook& codebook, SharedBook& to) {
    constexpr bool lower = F::kStochastic;
    const Search& search = lower ? codebook.lower : codebook.nearest;
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < kMaxCodes; i += kThreads) to.value[i] = codebook.values[i];
    if (search.limit == nullptr) return;
    for (int i = thread; lower && i < kMaxCodes; i += kThreads) {
        const float low = codebook.values[i];
        to.gap[i] = {low, i + 1 < codebook.size ? codebook.values[i + 1] - low : float_of(kInfinityBits)};
    }
    for (int i = thread; i < 2 * kMaxCodes; i += kThreads) to.limit[i] = search.limit[i];
    const std::uint8_t* guess = F::kSteps == kCells ? search.cells : search.guess;
    const int guesses = F::kSteps == kCells ? search.cell_count : search.buckets + search.negative;
    for (int i = thread; i < guesses; i += kThreads) to.guess[i] = guess[i];
}

// The number at a place of a table, of whose place in codes of 4 bits the lower bits count. Then the
// table lies in the lanes of half a warp, all of whose threads call this.
template <class F>
QMAPS_INLINE float looked_up(const float* table, int place) {
    if constexpr (F::kBits == 4)
        return __shfl_sync(kAll, table[threadIdx.x % 16], place, 16);
    else
        return table[place];
}

// 1 where n is larger than a limit, else 0; neither is NaN, and no limit is -0. By the sign of their
// difference, which is that of NaN, none, if both are infinite.
QMAPS_INLINE int exceeds(float n, float limit) {
#if defined(__CUDA_ARCH__)
    return static_cast<int>(bits_of(limit - n) >> 31);
#else
    return n > limit ? 1 : 0;
#endif
}

// The number of limits below n, which is not NaN. Every thread of the warp calls it.
template <class F>
QMAPS_INLINE int search_code(const Book& book, float n) {
    const Search& search = F::kStochastic ? book.codebook.lower : book.codebook.nearest;
    if constexpr (F::kSteps == kCells) {
        const int code = book.shared.guess[bits_of(fused(n, search.cell, search.cell))];
        return code + exceeds(n, looked_up<F>(book.shared.limit, code));
    }
    const int first = search.first, last = first + search.buckets - 1;
    // Magnitudes within the first bucket and within the last.
    const float least = float_of(static_cast<std::uint32_t>(first) << search.shift);
    const float most = float_of(static_cast<std::uint32_t>(last) << search.shift);
    const float magnitude = bounded(F::kSigned ? magnitude_of(n) : n, least, most);
    int bucket = static_cast<int>(bits_of(magnitude) >> search.shift) - first;
    if (F::kSigned) bucket += static_cast<int>(bits_of(n) >> 31) * search.negative;
    const float* limit = book.shared.limit;
    const int code = book.shared.guess[bucket];
    if constexpr (F::kSteps == 1)
        return code + exceeds(n, limit[code]);
    else
        return refined(limit, code, F::kSteps, n);
}

}  // namespace qmaps
