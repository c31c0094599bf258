#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels.hpp"

namespace qmaps {
namespace {

#if defined(QMAPS_X86)
bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("fma");
}
bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bitalg") &&
           __builtin_cpu_supports("gfni");
}
#endif

std::vector<const Kernels*> available() {
    std::vector<const Kernels*> found;
#if defined(QMAPS_X86)
    __builtin_cpu_init();  // not every compiler's library does it by itself
    if (has_avx512()) found.push_back(&avx512_kernels());
    if (has_avx2()) found.push_back(&avx2_kernels());
#endif
    found.push_back(&portable_kernels());
    return found;
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
