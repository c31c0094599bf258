// The elements of wanted ranks: keys are counted by their leading bits, and those that share them
// with a wanted element by further bits, digit by digit, until enough bits are known.
//
// Counters lie in shared memory, so a pass costs little more than reading the tensor: of a block's
// 48 KiB they take 36, and a digit has as many bits as they allow for the cells at hand. 512 ranks
// of float32 need five or six passes, each bound by memory (0.3 ms for 2^28 elements at 4 TB/s).
// Counters in global memory would need fewer, but there all elements with equal digits wait for
// one another. What the digits are is decided on the device.
#pragma once

#include "block.cuh"
#include "sort.cuh"

namespace qmaps {

constexpr int kFirstBits = 12;                // of the first digit
constexpr int kCounters = 9216;
constexpr int kMaxRanks = 1024;
constexpr int kMaxPasses = 8;                 // for kMaxRanks cells in a pass: 12 bits and 7 * 3
static_assert((1 << kFirstBits) <= kCounters && kMaxRanks << 3 <= kCounters);
static_assert(kFirstBits + 3 * (kMaxPasses - 1) >= 32);

// What is known of one rank's element.
struct Rank {
    std::int64_t before;      // elements whose known bits are less
    std::int64_t inside;      // elements whose known bits are the same
    std::uint32_t prefix;     // the known bits of its key
    std::uint32_t cell;       // their number among the cells of all ranks
};

// Zero at first. Cell numbers in `table` are one more than they are, 0 where no rank is.
struct Narrowing {
    std::int32_t passes;                               // digits that are known
    std::int32_t known;                                // and their bits
    std::int32_t cells;
    std::int32_t unused;
    std::int32_t width[kMaxPasses + 1];                // bits of each digit, the next one included
    std::uint32_t alive[kCounters / 32];               // whether a digit of the second pass is in a cell
    std::uint16_t table[kMaxPasses][kCounters];        // cell by the cell before and the digit
    std::uint64_t counts[kCounters + 8];               // elements by cell and digit
    Rank rank[kMaxRanks];
};

struct Selection {
    const void* x;
    std::int64_t numel;
    std::int64_t bits;              // leading bits of keys that are wanted; the rest are alike
    const std::int64_t* ranks;
    std::int64_t count;             // of ranks, up to kMaxRanks
    Narrowing* narrowing;
    std::uint64_t* bad;             // elements that are NaN or infinite
    float* values;                  // the elements of these ranks
};

// Call use(key, count) for the keys of all elements, kUnit or less at a time.
template <class T, class Use>
QMAPS_INLINE void for_each_unit(const Selection& s, const Use& use) {
    const std::int64_t tiles = (s.numel + kTile - 1) / kTile;
    for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const std::int64_t at = tile * kTile + static_cast<std::int64_t>(threadIdx.x) * kUnit;
        const std::int64_t rest = s.numel - at;
        const int count = rest <= 0 ? 0 : rest < kUnit ? static_cast<int>(rest) : kUnit;
        float x[kUnit];
        load_unit(static_cast<const T*>(s.x) + at, count, x);
        std::uint32_t key[kUnit];
#pragma unroll
        for (int j = 0; j < kUnit; ++j) key[j] = key_of(x[j]);
        use(key, count);
    }
}

QMAPS_INLINE void clear_counters(std::uint32_t* counter, int size) {
    for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) counter[i] = 0;
}

QMAPS_INLINE void add_counters(const std::uint32_t* counter, int size, std::uint64_t* counts) {
    for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads)
        if (counter[i]) atomicAdd(counts + i, static_cast<std::uint64_t>(counter[i]));
}

// The first pass.
template <class T>
__global__ void count_first_digit(const Selection s) {
    __shared__ std::uint32_t counter[1 << kFirstBits];
    __shared__ std::uint32_t sums[kThreads / kWarp];
    clear_counters(counter, 1 << kFirstBits);
    __syncthreads();
    std::uint32_t bad = 0;
    const std::uint32_t infinity = key_of(float_of(kInfinityBits));
    for_each_unit<T>(s, [&](const std::uint32_t* key, int count) {
#pragma unroll
        for (int j = 0; j < kUnit; ++j) {
            if (j >= count) continue;
            bad += key[j] >= infinity || key[j] <= ~infinity ? 1u : 0u;
            atomicAdd(&counter[key[j] >> (32 - kFirstBits)], 1u);
        }
    });
    __syncthreads();
    add_counters(counter, 1 << kFirstBits, s.narrowing->counts);
    bad = block_sum(bad, sums);
    if (threadIdx.x == 0 && bad) atomicAdd(s.bad, static_cast<std::uint64_t>(bad));
}

// A later one. Most elements of most data leave at the second digit, for which a bit each is in
// shared memory; the others follow the tables through the caches. A thread's elements go on
// together, so that they wait for memory together.
template <class T>
__global__ void count_next_digit(const Selection s) {
    __shared__ std::uint32_t counter[kCounters];
    __shared__ std::uint16_t first[1 << kFirstBits];
    __shared__ std::uint32_t alive[kCounters / 32 + 1];
    const Narrowing& n = *s.narrowing;
    if (n.known >= s.bits) return;
    const int passes = n.passes, width = n.width[passes], second = n.width[1];
    clear_counters(counter, n.cells << width);
    for (int i = static_cast<int>(threadIdx.x); i < 1 << kFirstBits; i += kThreads)
        first[i] = n.table[0][i];
    for (int i = static_cast<int>(threadIdx.x); i <= kCounters / 32; i += kThreads)
        alive[i] = i < kCounters / 32 ? n.alive[i] : 0;
    __syncthreads();
    for_each_unit<T>(s, [&](const std::uint32_t* key, int count) {
        std::uint32_t cell[kUnit];
        int left = 32 - kFirstBits;
        // A cell and its digit; kCounters without a cell.
        const auto place = [&](int j, int bits) {
            const std::uint32_t digit = key[j] >> left & ((1u << bits) - 1u);
            return cell[j] ? (cell[j] - 1) << bits | digit : static_cast<std::uint32_t>(kCounters);
        };
#pragma unroll
        for (int j = 0; j < kUnit; ++j) cell[j] = j < count ? first[key[j] >> left] : 0u;
        if (passes > 1) {
            left -= second;
#pragma unroll
            for (int j = 0; j < kUnit; ++j) {
                const std::uint32_t at = place(j, second);
                cell[j] = alive[at / 32] >> at % 32 & 1u ? n.table[1][at] : 0u;
            }
            for (int pass = 2; pass < passes; ++pass) {
                const int bits = n.width[pass];
                left -= bits;
#pragma unroll
                for (int j = 0; j < kUnit; ++j)
                    cell[j] = cell[j] ? n.table[pass][place(j, bits)] : 0u;
            }
        }
        left -= width;
#pragma unroll
        for (int j = 0; j < kUnit; ++j)
            if (cell[j]) atomicAdd(&counter[place(j, width)], 1u);
    });
    __syncthreads();
    add_counters(counter, n.cells << width, s.narrowing->counts);
}

// Replace `size` numbers by the sums of those before them. Every thread of the block; returns the
// sum of all. `shared` has a place for each thread.
template <class T, class At>
QMAPS_INLINE T sums_before(int size, const At& at, T* shared) {
    const int thread = static_cast<int>(threadIdx.x);
    const int each = (size + kThreads - 1) / kThreads;
    const int begin = thread * each < size ? thread * each : size;
    const int end = begin + each < size ? begin + each : size;
    T own = 0;
    for (int i = begin; i < end; ++i) own += at(i, T(0), false);
    shared[thread] = own;
    __syncthreads();
    T before = 0, total = 0;
    for (int t = 0; t < kThreads; ++t) {
        if (t == thread) before = total;
        total += shared[t];
    }
    for (int i = begin; i < end; ++i) before += at(i, before, true);
    __syncthreads();
    return total;
}

// The known bits of a key as those of the float.
QMAPS_INLINE std::uint32_t float_bits(std::uint32_t prefix, int bits) {
    const std::uint32_t sign = 1u << (bits - 1), all = sign | (sign - 1u);
    return prefix & sign ? prefix ^ sign : ~prefix & all;
}

QMAPS_INLINE void write_rank(const Selection& s, int i, const Rank& rank) {
    const std::uint32_t bits = float_bits(rank.prefix, static_cast<int>(s.bits));
    s.values[i] = float_of(bits << (32 - s.bits));
}

// After each pass: every rank's digit, numbers for the cells in which ranks then are, and how many
// bits the next digit has. One block.
__global__ void decide_digit(const Selection s) {
    __shared__ std::uint64_t sums[kThreads];
    __shared__ std::uint32_t numbers[kThreads];
    Narrowing& n = *s.narrowing;
    const int thread = static_cast<int>(threadIdx.x), count = static_cast<int>(s.count);
    const int pass = n.passes, known = n.known;
    if (known >= s.bits) return;
    const int width = pass == 0 ? kFirstBits : n.width[pass];
    const int size = (pass == 0 ? 1 : n.cells) << width;
    std::uint16_t* table = n.table[pass];
    const std::uint64_t total = sums_before<std::uint64_t>(
        size,
        [&](int i, std::uint64_t before, bool store) {
            const std::uint64_t own = n.counts[i];
            if (store) n.counts[i] = before;
            return own;
        },
        sums);
    if (thread == 0) n.counts[size] = total;
    __syncthreads();
    const int will_know = known + width;
    for (int i = thread; i < count; i += kThreads) {
        Rank rank = n.rank[i];
        const int base = static_cast<int>(rank.cell << width);
        // Elements before that of this rank, among those that were counted.
        const std::uint64_t wanted =
            static_cast<std::uint64_t>(s.ranks[i] - rank.before) + n.counts[base];
        int digit = 0;
        for (int some = 1 << width >> 1; some > 0; some /= 2)
            if (n.counts[base + digit + some] <= wanted) digit += some;
        const int at = base + digit;
        rank.before += static_cast<std::int64_t>(n.counts[at] - n.counts[base]);
        rank.inside = static_cast<std::int64_t>(n.counts[at + 1] - n.counts[at]);
        rank.prefix = rank.prefix << width | static_cast<std::uint32_t>(digit);
        rank.cell = static_cast<std::uint32_t>(at);
        n.rank[i] = rank;
        table[at] = 1;
        if (will_know >= s.bits) write_rank(s, i, rank);
    }
    __syncthreads();
    const std::uint32_t cells = sums_before<std::uint32_t>(
        size,
        [&](int i, std::uint32_t before, bool store) {
            const std::uint32_t own = table[i];
            if (store && own) table[i] = static_cast<std::uint16_t>(before + 1);
            return own;
        },
        numbers);
    for (int i = thread; i < count; i += kThreads) n.rank[i].cell = table[n.rank[i].cell] - 1u;
    for (int i = thread; i <= size; i += kThreads) n.counts[i] = 0;
    if (pass == 1)
        for (int i = thread; i < kCounters / 32; i += kThreads) {
            std::uint32_t alive = 0;
            for (int bit = 0; bit < 32; ++bit) alive |= (table[32 * i + bit] ? 1u : 0u) << bit;
            n.alive[i] = alive;
        }
    if (thread == 0) {
        int next = 1;
        while (next < kFirstBits && cells << (next + 1) <= kCounters) ++next;
        const int rest = static_cast<int>(s.bits) - will_know;
        n.width[pass] = width;
        n.width[pass + 1] = next < rest ? next : rest;
        n.passes = pass + 1;
        n.known = will_know;
        n.cells = static_cast<std::int32_t>(cells);
    }
}

}  // namespace qmaps
