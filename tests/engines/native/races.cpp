// Calls of the thread pool from several threads at a time, for the compiler's thread sanitizer: it
// reports what two threads touch without an order between them. test_thread_pool.py builds it.

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "qmaps/engines/native/src/parallel.hpp"

namespace {

constexpr int kCallers = 4;
constexpr int kCalls = 400;

std::atomic<int> wrong{0};
std::atomic<std::int64_t> shared{0};  // items that threads of the pool took

// Each item writes a place of its own, without a lock; the caller reads them all after the call.
void call(int caller) {
    std::vector<std::int64_t> places;
    for (int number = 0; number < kCalls; ++number) {
        const std::int64_t items = (number * 37 + caller) % 200;
        const int threads = 1 + (number + caller) % 5;
        places.assign(static_cast<std::size_t>(items), 0);
        std::vector<std::int64_t> done(static_cast<std::size_t>(threads), 0);
        qmaps::parallel(items, threads, [&](std::int64_t item, int thread) {
            places[static_cast<std::size_t>(item)] += item + number;
            ++done[static_cast<std::size_t>(thread)];  // no other thread has this number
        });
        std::int64_t sum = 0;
        for (const std::int64_t count : done) sum += count;
        if (sum != items) ++wrong;
        shared += sum - done[0];
        for (std::int64_t item = 0; item < items; ++item)
            if (places[static_cast<std::size_t>(item)] != item + number) ++wrong;
    }
}

}  // namespace

int main() {
    call(0);  // alone, so that the pool's threads take part
    std::vector<std::thread> callers;
    for (int caller = 0; caller < kCallers; ++caller) callers.emplace_back(call, caller);
    for (std::thread& caller : callers) caller.join();
    std::printf("%d calls, %d wrong, %lld items by threads of the pool\n", (kCallers + 1) * kCalls,
                wrong.load(), static_cast<long long>(shared.load()));
    return wrong == 0 ? 0 : 1;
}
