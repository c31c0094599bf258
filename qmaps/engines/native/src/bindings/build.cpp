#include "arguments.hpp"
#include "../kernels.hpp"
#include "register.hpp"

namespace qmaps {

void register_build(nb::module_& module) {
    module.def(
        "rules",
        [] {
            // Name, states, scalars, C++ type, whether it takes norms, and its factoring.
            using Row = std::tuple<std::string, std::string, std::string, std::string, bool, int>;
            std::vector<Row> rows;
            const Rules& rules = kernels().rules;
            for (const Rule* rule = rules.rule; rule != rules.rule + rules.count; ++rule)
                rows.emplace_back(rule->name, rule->state_names, rule->scalar_names, rule->type,
                                  rule->measured != nullptr, rule->factoring);
            return rows;
        },
        "Every rule that steps take, with what its header declared when this was compiled.");
    module.def(
        "enumerators",
        [] {
            std::vector<std::tuple<std::string, std::string, int>> rows;
            for (const auto& [enumeration, name, value] : kEnumerators)
                rows.emplace_back(enumeration, name, value);
            return rows;
        },
        "Enumeration, name and value of the numbers that Python shares.");
    module.def("isa", [] { return std::string(kernels().name); },
               "The instruction set in use; QMAPS_ISA chooses another.");
    module.def(
        "isas",
        [] {
            std::vector<std::string> names;
            for (const char* name : available_isas()) names.emplace_back(name);
            return names;
        },
        "Every instruction set that this build and this processor have, best first.");
    module.def(
        "divisions", [](std::int64_t count) { kernels().divisions(count); }, nb::arg("count"),
        nb::call_guard<Unlocked>(),
        "256 divisions, so many times over: benchmarks take their time.");
    module.def(
        "roots", [](std::int64_t count) { kernels().roots(count); }, nb::arg("count"),
        nb::call_guard<Unlocked>(),
        "256 square roots, so many times over: benchmarks take their time.");
    module.def(
        "shuffles", [](std::int64_t count) { return kernels().shuffles(count); }, nb::arg("count"),
        nb::call_guard<Unlocked>(),
        "256 permutes of registers, so many times over: benchmarks take their time. False where the "
        "instruction set in use looks codes up without.");
    // `qmaps doctor` reports it; __VERSION__ of Clang holds its name.
    module.attr("compiler") =
#if defined(__clang__)
        __VERSION__;
#elif defined(__GNUC__)
        "GCC " __VERSION__;
#elif defined(_MSC_VER)
        "MSVC " + std::to_string(_MSC_VER);
#else
        "unknown";
#endif
}

}  // namespace qmaps
