// Splitting work between threads.
#pragma once

#include <atomic>
#include <cstdint>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace qmaps {

// Call work(item, thread) for every item in [0, items), on up to `threads` threads. Items are
// handed out one by one, so that threads that are held up take fewer. `work` must not throw.
//
// OpenMP, because the process then has one team of threads together with torch's.
template <class Work>
void parallel(std::int64_t items, int threads, const Work& work) {
#if defined(_OPENMP)
    if (threads > items) threads = static_cast<int>(items);
    if (threads > 1) {
        std::atomic<std::int64_t> next{0};
#pragma omp parallel num_threads(threads)
        {
            const int thread = omp_get_thread_num();
            for (;;) {
                const std::int64_t item = next.fetch_add(1, std::memory_order_relaxed);
                if (item >= items) break;
                work(item, thread);
            }
        }
        return;
    }
#else
    (void)threads;
#endif
    for (std::int64_t item = 0; item < items; ++item) work(item, 0);
}

}  // namespace qmaps
