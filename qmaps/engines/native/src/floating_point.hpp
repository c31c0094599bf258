// How a thread computes with floating-point numbers.
#pragma once

#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace qmaps {

// While it lives, this thread rounds to nearest and keeps subnormals, whatever it did before (after
// torch.set_flush_denormal, say).
class Ieee {
  public:
#if defined(__x86_64__) || defined(_M_X64)
    Ieee() : before_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
    ~Ieee() { _mm_setcsr(static_cast<unsigned>(before_)); }
#elif defined(__aarch64__)
    Ieee() {
        __asm__ volatile("mrs %0, fpcr" : "=r"(before_));
        __asm__ volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
    }
    ~Ieee() { __asm__ volatile("msr fpcr, %0" : : "r"(before_)); }
#endif
    Ieee(const Ieee&) = delete;
    Ieee& operator=(const Ieee&) = delete;

  private:
    [[maybe_unused]] std::uint64_t before_ = 0;
};

}  // namespace qmaps
