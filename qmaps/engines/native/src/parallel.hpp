// Splitting work between threads.
#pragma once

#include <atomic>
#include <cstdint>

#include "thread_pool.hpp"

namespace qmaps {

// Call work(item, thread) for every item in [0, items), on up to `threads` threads. Items are
// handed out one by one, so that threads that are held up take fewer. `work` must not throw.
template <class Work>
void parallel(std::int64_t items, int threads, const Work& work) {
    if (threads > items) threads = static_cast<int>(items);
    if (threads < 2) {
        for (std::int64_t item = 0; item < items; ++item) work(item, 0);
        return;
    }
    std::atomic<std::int64_t> next{0};
    const auto share = [&](int thread) {
        for (;;) {
            const std::int64_t item = next.fetch_add(1, std::memory_order_relaxed);
            if (item >= items) break;
            work(item, thread);
        }
    };
    using Share = decltype(share);
    in_team(
        threads,
        [](const void* context, int thread) { (*static_cast<const Share*>(context))(thread); },
        &share);
}

}  // namespace qmaps
