#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels.hpp"

#if defined(QMAPS_X86)
#include <cpuid.h>
#endif

namespace qmaps {
namespace {

#if defined(QMAPS_X86)
// What the processor can do, and the system lets programs use. Asked of the processor itself:
// __builtin_cpu_supports answers no to everything in a wheel that Zig's compiler makes.
class Processor {
public:
    Processor() {
        unsigned a, b, c, d;
        if (!__get_cpuid(1, &a, &b, &c, &d) || !bit(c, 27)) return;  // the system keeps no wide registers
        fma_and_f16c_ = bit(c, 12) && bit(c, 29);
        unsigned low, high;
        __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        kept_ = low;
        if (!__get_cpuid_count(7, 0, &a, &ebx_, &ecx_, &d)) ebx_ = ecx_ = 0;
    }

    // AVX2, BMI, BMI2, FMA and F16C: what CMakeLists.txt lets the compiler use.
    bool has_avx2() const {
        return keeps(0x06) && bit(ebx_, 5) && bit(ebx_, 3) && bit(ebx_, 8) && fma_and_f16c_;
    }

    // These, and F, DQ, BW and VL; VBMI, GFNI and BITALG.
    bool has_avx512() const {
        return has_avx2() && keeps(0xe6) && bit(ebx_, 16) && bit(ebx_, 17) && bit(ebx_, 30) &&
               bit(ebx_, 31) && bit(ecx_, 1) && bit(ecx_, 8) && bit(ecx_, 12);
    }

private:
    static bool bit(unsigned word, int number) { return (word >> number & 1) != 0; }
    bool keeps(unsigned registers) const { return (kept_ & registers) == registers; }

    bool fma_and_f16c_ = false;
    unsigned kept_ = 0, ebx_ = 0, ecx_ = 0;
};
#endif

std::vector<const Kernels*> available() {
    std::vector<const Kernels*> sets;
#if defined(QMAPS_X86)
    static const Processor processor;
    if (processor.has_avx512()) sets.push_back(&avx512_kernels());
    if (processor.has_avx2()) sets.push_back(&avx2_kernels());
#elif defined(QMAPS_ARM)
    sets.push_back(&neon_kernels());
#endif
    sets.push_back(&portable_kernels());
    return sets;
}

}  // namespace

std::vector<const char*> available_isas() {
    std::vector<const char*> names;
    for (const Kernels* set : available()) names.push_back(set->name);
    return names;
}

const Kernels& kernels() {
    const auto sets = available();
    const char* wanted = std::getenv("QMAPS_ISA");
    if (wanted == nullptr || *wanted == '\0') return *sets.front();
    std::string allowed;
    for (const Kernels* set : sets) {
        if (std::strcmp(set->name, wanted) == 0) return *set;
        allowed += (allowed.empty() ? "" : ", ") + std::string(set->name);
    }
    throw std::invalid_argument("QMAPS_ISA='" + std::string(wanted) +
                                "' is not available on this processor; allowed are " + allowed);
}

}  // namespace qmaps
