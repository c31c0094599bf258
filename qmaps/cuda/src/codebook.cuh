// A codebook in the block's shared memory.
#pragma once

#include "layout.cuh"

namespace qmaps {

// How codes are chosen and scaled.
//   kBits         of a code; kInShared: its codebook is copied to shared memory
//   kBlock        elements that share a scale which is theirs alone, a power of two from kUnit to
//                 kTile; 0: scales lie as the tensor's parts say
//   kLog          log2 ranges instead of scales
//   kStochastic   rounding
//   kSigned       some limits between codes are negative
//   kSteps        halvings that are left after the first guess of a search
//   kScaling      how the scale of a kBlock comes about
enum Scaling : int {
    kMaxima,     // the largest magnitude, in float32
    kFormatted,  // the largest magnitude, in the part's format
    kQuantile,   // of a log2 range: its lower end is a quantile
    kPowers,     // the largest magnitude, and an exponent under which the block's range grows
};
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
};

// A state that stays in float32.
struct Plain {
    static constexpr bool kQuantized = false;
    static constexpr bool kWide = false;
    static constexpr bool kInShared = false;
    static constexpr int kBlock = 1;
};

struct alignas(16) SharedBook {
    float value[kMaxCodes];
    float limit[2 * kMaxCodes];
    std::uint8_t guess[kMaxGuesses];
    float least, most;  // magnitudes within the first bucket and within the last
    std::int32_t shift, first, negative, last, ties, in_log;
};

// Every thread of the block; others may read it after a __syncthreads().
QMAPS_INLINE void load_book(const Codebook& codebook, bool lower, SharedBook& to) {
    const Search& search = lower ? codebook.lower : codebook.nearest;
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < kMaxCodes; i += kThreads) to.value[i] = codebook.values[i];
    if (search.limit == nullptr) return;
    for (int i = thread; i < 2 * kMaxCodes; i += kThreads) to.limit[i] = search.limit[i];
    for (int i = thread; i < search.buckets + search.negative; i += kThreads) to.guess[i] = search.guess[i];
    if (thread == 0) {
        to.shift = search.shift;
        to.first = search.first;
        to.negative = search.negative;
        to.least = float_of(static_cast<std::uint32_t>(search.first) << search.shift);
        to.most = float_of(static_cast<std::uint32_t>(search.first + search.buckets - 1)
                           << search.shift);
        to.last = static_cast<std::int32_t>(codebook.size) - 1;
        to.ties = static_cast<std::int32_t>(codebook.ties);
        to.in_log = static_cast<std::int32_t>(codebook.in_log);
    }
}

// The number of limits below n, which is not NaN.
template <class F>
QMAPS_INLINE int search_code(const SharedBook& codebook, float n) {
    float magnitude = F::kSigned ? (n < 0.0f ? -n : n) : n;
    magnitude = magnitude > codebook.least ? magnitude : codebook.least;
    magnitude = magnitude < codebook.most ? magnitude : codebook.most;
    const int bucket = static_cast<int>(bits_of(magnitude) >> codebook.shift) - codebook.first;
    const int code = codebook.guess[bucket + (F::kSigned && n < 0.0f ? codebook.negative : 0)];
    return refined(codebook.limit, code, F::kSteps, n);
}

}  // namespace qmaps
