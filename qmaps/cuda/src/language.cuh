// What every kernel is compiled with: integer types for NVRTC, which has no standard headers, and
// what one element goes through.
//
// The tests compile the same kernels for the processor, with threads in place of a block
// (tests/cuda/emulation); so only what that emulates may be used.
#pragma once

#if defined(__CUDACC_RTC__)
namespace std {
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
using uintptr_t = unsigned long long;
}  // namespace std
#endif

#define QMAPS_BY_PRODUCTS

namespace qmaps {

#include "qmaps/engines/kernels/all.hpp"

constexpr int kThreads = 256;              // of every block
constexpr int kUnit = 8;                   // elements of a thread: whole bytes of codes of any width
constexpr int kWhole = kUnit + 1;          // a thread has all, where wide accesses reach them
constexpr int kTile = kThreads * kUnit;    // elements that a block works on at a time
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
constexpr unsigned kAll = 0xFFFFFFFFu;     // the threads of a warp

}  // namespace qmaps
