// Sorting 4096 keys of a block of threads, 16 in the registers of each.
//
// A bitonic network: what is compared does not depend on the data, so all data take the same time.
// The 12 bits of a key's place are three groups of four. In layout g a thread holds the 16 keys
// whose places differ in group g alone, and compares them in registers; between layouts keys go
// through shared memory. Per key that is 78 minima or maxima, 9 exclusive ors and 40 accesses of
// shared memory without bank conflicts: on sm_90 (64 and 32 lanes a cycle) 1.36 and 1.25 cycles of
// a multiprocessor, which overlap. Shuffles for distances within a warp would take as many.
#pragma once

#include "memory.cuh"

namespace qmaps {

constexpr int kKeys = 16;                  // of each thread
constexpr int kSorted = kThreads * kKeys;  // of the block
constexpr int kSortedBits = 12;
constexpr int kWarpWords = kSorted / (kThreads / kWarp) + 32;    // a warp's part of shared memory
constexpr int kSortWords = kWarpWords * (kThreads / kWarp);
static_assert(1 << kSortedBits == kSorted);

// Integers that order as the floats do, negative zero below zero.
QMAPS_INLINE std::uint32_t key_of(float value) {
    const std::uint32_t bits = bits_of(value);
    return bits ^ (static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 31) | 0x80000000u);
}

QMAPS_INLINE float of_key(std::uint32_t key) {
    return float_of(key ^ (key >> 31 ? 0x80000000u : 0xFFFFFFFFu));
}

// The place of a thread's first key; that of key k has k in the bits of the group besides.
template <int kGroup>
QMAPS_INLINE int first_place(int thread) {
    return kGroup == 0 ? thread << 4 : kGroup == 1 ? (thread & 15) | thread >> 4 << 8 : thread;
}

// Where a place lies in shared memory as keys go from one layout to another. The gaps spread both
// layouts' accesses over all banks, and leave the places of a warp's keys in layouts 0 and 1, 512
// neighbours, within the kWarpWords that no other warp touches.
template <int kFrom, int kTo>
QMAPS_INLINE constexpr int word_of(int place) {
    return kFrom + kTo == 1   ? place + (place >> 4)
           : kFrom + kTo == 2 ? place + (place >> 5) + (place >> 9) * 16
                              : place + (place >> 8) * 16;
}

// From layout kFrom to kTo. Layouts 0 and 1 need only the warp, layout 2 the whole block.
template <int kFrom, int kTo>
QMAPS_INLINE void move_keys(std::uint32_t* key, std::uint32_t* shared) {
    const int thread = static_cast<int>(threadIdx.x);
    // Until those who read these words have done so.
    if (kFrom == 2) __syncthreads();
    else __syncwarp();
    std::uint32_t* to = shared + word_of<kFrom, kTo>(first_place<kFrom>(thread));
#pragma unroll
    for (int k = 0; k < kKeys; ++k) to[word_of<kFrom, kTo>(k << 4 * kFrom)] = key[k];
    if (kFrom == 2 || kTo == 2) __syncthreads();
    else __syncwarp();
    const std::uint32_t* from = shared + word_of<kFrom, kTo>(first_place<kTo>(thread));
#pragma unroll
    for (int k = 0; k < kKeys; ++k) key[k] = from[word_of<kFrom, kTo>(k << 4 * kTo)];
}

// Compare keys of this thread whose numbers differ in one bit, from bit kBits - 1 down to bit 0.
// Where bit kDown of the number is set, the larger one comes first.
template <int kBits, int kDown = 4>
QMAPS_INLINE void compare_keys(std::uint32_t* key) {
#pragma unroll
    for (int bit = kBits - 1; bit >= 0; --bit) {
#pragma unroll
        for (int k = 0; k < kKeys; ++k) {
            if (k >> bit & 1) continue;
            const int other = k | 1 << bit;
            const std::uint32_t a = key[k], b = key[other];
            const std::uint32_t low = a < b ? a : b, high = a < b ? b : a;
            const bool down = (k >> kDown & 1) != 0;
            key[k] = down ? high : low;
            key[other] = down ? low : high;
        }
    }
}

// Sorted stretches of 2^kPhase keys from bitonic ones, every other one in descending order unless
// it is the last phase. From phase 4 on threads compare alike: the keys that shall descend are
// complemented meanwhile, those of a thread all or none.
template <int kPhase, int kLog>
QMAPS_INLINE void sort_phase(std::uint32_t* key, std::uint32_t* shared) {
    if constexpr (kPhase < 4) {
        compare_keys<kPhase, kPhase == kLog ? 4 : kPhase>(key);
    } else {
        const std::uint32_t thread = threadIdx.x;
        const std::uint32_t is = kPhase > 4 ? thread >> (kPhase > 4 ? kPhase - 5 : 0) & 1u : 0u;
        const std::uint32_t becomes = kPhase < kLog ? thread >> (kPhase - 4) & 1u : 0u;
        const std::uint32_t turned = 0u - (is ^ becomes);
#pragma unroll
        for (int k = 0; k < kKeys; ++k) key[k] ^= turned;
        if constexpr (kPhase > 8) {
            move_keys<0, 2>(key, shared);
            compare_keys<kPhase - 8>(key);
            move_keys<2, 1>(key, shared);
            compare_keys<4>(key);
            move_keys<1, 0>(key, shared);
        } else if constexpr (kPhase > 4) {
            move_keys<0, 1>(key, shared);
            compare_keys<kPhase - 4>(key);
            move_keys<1, 0>(key, shared);
        }
        compare_keys<4>(key);
    }
}

template <int kLog, int kPhase = 1>
QMAPS_INLINE void sort_phases(std::uint32_t* key, std::uint32_t* shared) {
    if constexpr (kPhase <= kLog) {
        sort_phase<kPhase, kLog>(key, shared);
        sort_phases<kLog, kPhase + 1>(key, shared);
    }
}

// Sort every stretch of 2^kLog keys. Key k of a thread has place 16 * thread + k. Every thread of
// the block calls it; `shared` has kSortWords, which nobody may still be reading.
template <int kLog>
QMAPS_INLINE void sort_keys(std::uint32_t* key, std::uint32_t* shared) {
    static_assert(kLog >= 0 && kLog <= kSortedBits);
    sort_phases<kLog>(key, shared);
}

// Leave keys where every thread can read them, by place at `sorted_word`, once it returns.
QMAPS_INLINE int sorted_word(int place) { return word_of<0, 1>(place); }

QMAPS_INLINE void share_keys(const std::uint32_t* key, std::uint32_t* shared) {
    __syncwarp();
    std::uint32_t* to = shared + sorted_word(first_place<0>(static_cast<int>(threadIdx.x)));
#pragma unroll
    for (int k = 0; k < kKeys; ++k) to[k] = key[k];
    __syncthreads();
}

}  // namespace qmaps
