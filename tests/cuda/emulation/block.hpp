// CUDA's words for a processor: a thread of the system stands for each thread of a block, and the
// blocks of a launch run one after another. What a real device does not promise (lanes in step,
// shared memory that is zero) is not promised here either, so that a race or a missing barrier
// shows, by chance or to a thread sanitizer.
#ifndef QMAPS_TESTS_BLOCK_HPP_
#define QMAPS_TESTS_BLOCK_HPP_

#include <pthread.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __global__ static
#define __shared__ static
#define __launch_bounds__(...)

struct Coordinates {
    unsigned x = 0, y = 0, z = 0;
};
static thread_local Coordinates threadIdx;
static Coordinates blockIdx, blockDim, gridDim;

namespace emulation {

constexpr int kWarp = 32;

struct Warp {
    pthread_barrier_t barrier;
    std::uint64_t slot[2][kWarp];
};

inline std::vector<Warp> warps;
inline pthread_barrier_t whole;
inline thread_local int parity = 0;

inline Warp& warp() { return warps[threadIdx.x / kWarp]; }
inline unsigned lane() { return threadIdx.x % kWarp; }

// What every lane of the warp gives. Two sets of slots: by the time that one is used again,
// everybody has read it.
template <class T>
const std::uint64_t* exchanged(T value) {
    static_assert(sizeof(T) <= 8);
    std::uint64_t* slot = warp().slot[parity ^= 1];
    std::memcpy(slot + lane(), &value, sizeof value);
    pthread_barrier_wait(&warp().barrier);
    return slot;
}

template <class T>
T value_of(std::uint64_t slot) {
    T value;
    std::memcpy(&value, &slot, sizeof value);
    return value;
}

template <class Argument>
void launch(void (*kernel)(Argument), int blocks, int threads, const void* argument) {
    gridDim.x = static_cast<unsigned>(blocks);
    blockDim.x = static_cast<unsigned>(threads);
    warps = std::vector<Warp>((threads + kWarp - 1) / kWarp);
    for (auto& each : warps) pthread_barrier_init(&each.barrier, nullptr, kWarp);
    pthread_barrier_init(&whole, nullptr, threads);
    Argument given;
    std::memcpy(&given, argument, sizeof given);
    std::vector<std::thread> team;
    for (int t = 0; t < threads; ++t)
        team.emplace_back([&, t] {
            threadIdx.x = static_cast<unsigned>(t);
            for (int b = 0; b < blocks; ++b) {
                pthread_barrier_wait(&whole);
                if (t == 0) blockIdx.x = static_cast<unsigned>(b);
                pthread_barrier_wait(&whole);
                kernel(given);
            }
        });
    for (auto& thread : team) thread.join();
    for (auto& each : warps) pthread_barrier_destroy(&each.barrier);
    pthread_barrier_destroy(&whole);
}

}  // namespace emulation

inline void __syncthreads() { pthread_barrier_wait(&emulation::whole); }
inline void __syncwarp(unsigned = 0) { pthread_barrier_wait(&emulation::warp().barrier); }

template <class T>
T __shfl_xor_sync(unsigned, T value, int lanes) {
    const std::uint64_t* slot = emulation::exchanged(value);
    return emulation::value_of<T>(slot[emulation::lane() ^ static_cast<unsigned>(lanes)]);
}
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
    return emulation::value_of<T>(emulation::exchanged(value)[lane]);
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
