// CUDA's words for a processor. The threads of a block are fibers of one thread of the system, or
// threads of the system; the blocks of a launch run one after another. What a real device does not
// promise (an order of threads, lanes in step, shared memory that is zero) is not promised here
// either. Fibers run one at a time, each until it waits for others, and who goes on is drawn: a
// barrier that is missing shows, and one that not all threads come to ends the process. A race
// between two instructions shows among threads of the system, by chance or to a thread sanitizer.
#ifndef QMAPS_TESTS_BLOCK_HPP_
#define QMAPS_TESTS_BLOCK_HPP_

#include <pthread.h>
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define __device__
#define __forceinline__ inline
#define __noinline__
#define __global__ static
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__

struct Coordinates {
    unsigned x = 0, y = 0, z = 0;
};
static thread_local Coordinates threadIdx;
static Coordinates blockIdx, blockDim, gridDim;

namespace emulation {

constexpr int kWarp = 32;

constexpr int kMost = 256;               // threads of a block
constexpr std::size_t kStack = 1 << 17;  // bytes of a fiber's stack

// Where threads meet: all of a block, or those of a warp.
struct Meeting {
    pthread_barrier_t barrier;  // of threads of the system
    int first, count, missing;  // of fibers
};

struct Warp {
    Meeting meeting;
    std::uint64_t slot[2][kWarp];
};

// Made once, for the kernels of all libraries: a compiler that shares no variable between them
// makes a team for each.
struct Team {
    jmp_buf fiber[kMost], home;
    int made = 0, running, unfinished;
    int ready[kMost], count;  // who can go on, in no order
    std::uint32_t random;
    void (*body)(int);
};
inline Team team;

static Warp warps[kMost / kWarp];
static Meeting whole;
static bool on_fibers;
static thread_local int parity = 0;

[[noreturn]] static void next_fiber() {
    if (team.count == 0) {
        if (team.unfinished == 0) _longjmp(team.home, 1);
        std::fputs("emulation: some threads of a block wait for others that have ended\n", stderr);
        std::abort();
    }
    team.random = team.random * 1664525u + 1013904223u;
    const auto drawn = static_cast<int>((team.random >> 8) % static_cast<unsigned>(team.count));
    team.running = team.ready[drawn];
    team.ready[drawn] = team.ready[--team.count];
    _longjmp(team.fiber[team.running], 1);
}

static ucontext_t maker;

static void live(int self) {
    ucontext_t fresh;
    if (_setjmp(team.fiber[self]) == 0) swapcontext(&fresh, &maker);
    for (;;) {
        team.body(self);
        --team.unfinished;
        if (_setjmp(team.fiber[self]) == 0) next_fiber();
    }
}

static void make_fiber(int self) {
    ucontext_t fresh;
    getcontext(&fresh);
    fresh.uc_stack.ss_sp = std::malloc(kStack);
    fresh.uc_stack.ss_size = kStack;
    fresh.uc_link = nullptr;
    makecontext(&fresh, reinterpret_cast<void (*)()>(live), 1, self);
    swapcontext(&maker, &fresh);
}

static void run_fibers(void (*body)(int), int threads) {
    for (; team.made < threads; ++team.made) make_fiber(team.made);
    team.body = body;
    team.count = team.unfinished = threads;
    for (int t = 0; t < threads; ++t) team.ready[t] = t;
    if (_setjmp(team.home) == 0) next_fiber();
}

inline Warp& warp() { return warps[threadIdx.x / kWarp]; }
inline unsigned lane() { return threadIdx.x % kWarp; }

static __attribute__((noinline)) void meet(Meeting& meeting) {
    if (!on_fibers) {
        pthread_barrier_wait(&meeting.barrier);
        return;
    }
    const Coordinates place = threadIdx;
    const int kept = parity;
    if (--meeting.missing == 0) {
        meeting.missing = meeting.count;
        for (int k = 0; k < meeting.count; ++k) team.ready[team.count++] = meeting.first + k;
    }
    if (_setjmp(team.fiber[team.running]) == 0) next_fiber();
    threadIdx = place;
    parity = kept;
}

// What every lane of the warp gives. Two sets of slots: by the time that one is used again,
// everybody has read it.
template <class T>
const std::uint64_t* exchanged(T value) {
    static_assert(sizeof(T) <= 8);
    std::uint64_t* slot = warp().slot[parity ^= 1];
    std::memcpy(slot + lane(), &value, sizeof value);
    meet(warp().meeting);
    return slot;
}

template <class T>
T value_of(std::uint64_t slot) {
    T value;
    std::memcpy(&value, &slot, sizeof value);
    return value;
}

static void prepare(Meeting& meeting, int first, int count) {
    pthread_barrier_init(&meeting.barrier, nullptr, static_cast<unsigned>(count));
    meeting.first = first;
    meeting.count = meeting.missing = count;
}

static void (*system_body)(int);

static void* system_thread(void* number) {
    const auto t = static_cast<int>(reinterpret_cast<std::intptr_t>(number));
    for (unsigned b = 0; b < gridDim.x; ++b) {
        pthread_barrier_wait(&whole.barrier);
        if (t == 0) blockIdx.x = b;
        pthread_barrier_wait(&whole.barrier);
        system_body(t);
    }
    return nullptr;
}

static void launch_body(void (*body)(int), int blocks, int threads, bool fibers) {
    gridDim.x = static_cast<unsigned>(blocks);
    blockDim.x = static_cast<unsigned>(threads);
    on_fibers = fibers;
    if (threads > kMost || threads % kWarp != 0) std::abort();
    prepare(whole, 0, threads);
    for (int w = 0; w < threads / kWarp; ++w) prepare(warps[w].meeting, w * kWarp, kWarp);
    if (fibers) {
        team.random = 0;
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) run_fibers(body, threads);
    } else {
        system_body = body;
        pthread_t started[kMost];
        for (std::intptr_t t = 0; t < threads; ++t)
            if (pthread_create(started + t, nullptr, system_thread, reinterpret_cast<void*>(t)))
                std::abort();
        for (int t = 0; t < threads; ++t) pthread_join(started[t], nullptr);
    }
    pthread_barrier_destroy(&whole.barrier);
    for (int w = 0; w < threads / kWarp; ++w) pthread_barrier_destroy(&warps[w].meeting.barrier);
}

template <class Argument>
static void launch(void (*kernel)(Argument), int blocks, int threads, const void* argument,
                   bool fibers) {
    static void (*run)(Argument);
    static Argument given;
    run = kernel;
    std::memcpy(&given, argument, sizeof given);
    const auto body = [](int t) {
        parity = 0;
        threadIdx.x = static_cast<unsigned>(t);
        run(given);
    };
    launch_body(body, blocks, threads, fibers);
}

}  // namespace emulation

inline void __syncthreads() { emulation::meet(emulation::whole); }
inline void __syncwarp(unsigned = 0) {
    emulation::meet(emulation::warp().meeting);
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int lanes) {
    const std::uint64_t* slot = emulation::exchanged(value);
    return emulation::value_of<T>(slot[emulation::lane() ^ static_cast<unsigned>(lanes)]);
}
template <class T>
T __shfl_sync(unsigned, T value, int lane, int width = emulation::kWarp) {
    const unsigned first = emulation::lane() / width * width;
    return emulation::value_of<T>(emulation::exchanged(value)[first + static_cast<unsigned>(lane) % width]);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int lanes) {
    const std::uint64_t* slot = emulation::exchanged(value);
    const int from = static_cast<int>(emulation::lane()) - lanes;
    return from < 0 ? value : emulation::value_of<T>(slot[from]);
}
inline unsigned __ballot_sync(unsigned, bool found) {
    const std::uint64_t* slot = emulation::exchanged(static_cast<std::uint64_t>(found));
    unsigned all = 0;
    for (int lane = 0; lane < emulation::kWarp; ++lane)
        if (slot[lane]) all |= 1u << lane;
    return all;
}
template <class T>
unsigned __match_any_sync(unsigned, T value) {
    const std::uint64_t* slot = emulation::exchanged(value);
    unsigned all = 0;
    for (int lane = 0; lane < emulation::kWarp; ++lane)
        if (emulation::value_of<T>(slot[lane]) == value) all |= 1u << lane;
    return all;
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(unsigned bits) { return __builtin_ffs(static_cast<int>(bits)); }

template <class T>
T atomicMax(T* to, T value) {
    T seen = __atomic_load_n(to, __ATOMIC_RELAXED);
    while (seen < value && !__atomic_compare_exchange_n(to, &seen, value, true, __ATOMIC_RELAXED,
                                                        __ATOMIC_RELAXED)) {
    }
    return seen;
}
template <class T>
T atomicOr(T* to, T value) {
    return __atomic_fetch_or(to, value, __ATOMIC_RELAXED);
}
template <class T>
T atomicAdd(T* to, T value) {
    return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}

#endif  // QMAPS_TESTS_BLOCK_HPP_
