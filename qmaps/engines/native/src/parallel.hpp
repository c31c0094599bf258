// Splitting work between threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "thread_pool.hpp"

namespace qmaps {

// Number of chunks, the last of which may be ragged.
inline std::int64_t chunks(std::int64_t numel, std::int64_t chunk) { return (numel + chunk - 1) / chunk; }

// Items that threads take from the front.
struct alignas(64) ItemRange {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
};

// Call work(item, thread) for every item in [0, items), on up to `threads` threads. `work` must not
// throw.
//
// A thread begins with a range that is the same one in every call with as many items and threads:
// what it wrote last time is in its caches, or in the memory of its socket. Then it takes what
// others have left, one item at a time, so that a thread that is held up holds up nobody.
template <class Work>
void parallel(std::int64_t items, int threads, const Work& work) {
    if (threads > items) threads = static_cast<int>(items);
    if (threads < 2) {
        for (std::int64_t item = 0; item < items; ++item) work(item, 0);
        return;
    }
    std::vector<ItemRange> ranges(static_cast<std::size_t>(threads));
    for (std::int64_t begin = 0, some = items / threads, rest = items % threads; ItemRange& range : ranges) {
        range.next.store(begin, std::memory_order_relaxed);
        begin = range.end = begin + some + (rest-- > 0 ? 1 : 0);
    }
    const auto share = [&](int thread) {
        for (int turn = 0; turn < threads; ++turn) {
            ItemRange& range = ranges[static_cast<std::size_t>((thread + turn) % threads)];
            for (;;) {
                const std::int64_t item = range.next.fetch_add(1, std::memory_order_relaxed);
                if (item >= range.end) break;
                work(item, thread);
            }
        }
    };
    using Share = decltype(share);
    in_team(
        threads,
        [](const void* context, int thread) { (*static_cast<const Share*>(context))(thread); },
        &share);
}

}  // namespace qmaps
