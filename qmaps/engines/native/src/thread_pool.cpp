#include "thread_pool.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

#include "floating_point.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace qmaps {

namespace {

// How often a thread looks before it sleeps: about a tenth of a millisecond. Calls that follow each
// other find it awake, and torch's threads, which follow in a training step, soon find it asleep.
constexpr int kLooks = 5000;

void pause() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

class Pool {
public:
    // False if another call has the threads; `work` has not been called then.
    bool run(int threads, void (*work)(const void*, int), const void* context) {
        std::unique_lock call(calls_, std::try_to_lock);
        if (!call || !start(threads - 1)) return false;
        {
            std::lock_guard lock(mutex_);
            work_ = work;
            context_ = context;
            places_ = threads;
            number_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        work(context, 0);
        for (int look = 0; look < kLooks && running_.load(std::memory_order_acquire) > 0; ++look) pause();
        std::unique_lock lock(mutex_);
        work_ = nullptr;  // too late for those that have not begun
        done_.wait(lock, [&] { return running_.load(std::memory_order_relaxed) == 0; });
        return true;
    }

private:
    // Let there be `wanted` threads; false if there is none.
    bool start(int wanted) {
        try {
            for (; started_ < wanted; ++started_) std::thread([this, number = started_ + 1] { serve(number); }).detach();
        } catch (const std::system_error&) {
            // The system allows no more.
        }
        return started_ > 0;
    }

    void serve(int thread) {
        const Ieee arithmetic;
        std::uint64_t seen = 0;
        for (;;) {
            for (int look = 0; look < kLooks && number_.load(std::memory_order_acquire) == seen; ++look) pause();
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [&] { return number_.load(std::memory_order_relaxed) != seen; });
            seen = number_.load(std::memory_order_relaxed);
            if (work_ == nullptr || thread >= places_) continue;
            const auto work = work_;
            const void* context = context_;
            running_.fetch_add(1, std::memory_order_relaxed);
            lock.unlock();
            work(context, thread);
            lock.lock();
            if (running_.fetch_sub(1, std::memory_order_release) == 1) done_.notify_one();
        }
    }

    std::mutex calls_;  // held during a call
    int started_ = 0;

    std::mutex mutex_;  // of all below
    std::condition_variable wake_, done_;
    std::atomic<std::uint64_t> number_{0};  // of the call
    std::atomic<int> running_{0};           // threads that work
    void (*work_)(const void*, int) = nullptr;
    const void* context_ = nullptr;
    int places_ = 0;  // threads of this call, with the one that calls
};

// Never destroyed, for its threads may wait in it until the process has ended.
std::atomic<Pool*> pool{nullptr};

#if defined(__unix__) || defined(__APPLE__)
// A child has none of the threads, and maybe a lock that nobody holds any more.
[[maybe_unused]] const int forgets_at_fork = pthread_atfork(nullptr, nullptr, [] { pool.store(nullptr); });
#endif

Pool& the_pool() {
    Pool* current = pool.load();
    if (current == nullptr) {
        auto* made = new Pool;
        if (pool.compare_exchange_strong(current, made)) return *made;
        delete made;
    }
    return *current;
}

}  // namespace

void in_team(int threads, void (*work)(const void*, int), const void* context) {
    if (threads < 2 || !the_pool().run(threads, work, context)) work(context, 0);
}

}  // namespace qmaps
