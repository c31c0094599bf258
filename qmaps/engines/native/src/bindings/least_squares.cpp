#include "../least_squares.hpp"
#include "arguments.hpp"
#include "register.hpp"

namespace qmaps {

void register_least_squares(nb::module_& module) {
    // Sorted data and its prefix sums: addresses of x, w, wx and wxx, and the number of values.
    using DataAt = std::tuple<Address, Address, Address, Address, std::int64_t>;
    const auto data = [](const DataAt& at) {
        const auto& [x, w, wx, wxx, count] = at;
        return SortedData{reinterpret_cast<double*>(x), reinterpret_cast<double*>(w),
                          reinterpret_cast<double*>(wx), reinterpret_cast<double*>(wxx), count};
    };
    module.def("sort_data", [data](Address values, Address weights, const DataAt& to) {
        Unlocked unlocked;
        sort_data(reinterpret_cast<const float*>(values),
                  reinterpret_cast<const double*>(weights), data(to));
    });
    module.def("partition", [](Address w, Address wx, Address wxx, std::int64_t count, int size) {
        Unlocked unlocked;
        return partition(reinterpret_cast<const double*>(w), reinterpret_cast<const double*>(wx),
                         reinterpret_cast<const double*>(wxx), count, size);
    });
    module.def("refine", [data](const DataAt& at, Address codebook, int size, int sweeps,
                                 double tolerance) {
        Unlocked unlocked;
        refine(data(at), reinterpret_cast<double*>(codebook), size, sweeps, tolerance);
    });
}

}  // namespace qmaps
