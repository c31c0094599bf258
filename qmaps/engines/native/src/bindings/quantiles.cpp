#include "arguments.hpp"
#include "register.hpp"

namespace qmaps {

// Each returns the number of elements that are NaN or infinite.
void register_quantiles(nb::module_& module) {
    module.def(
        "order_statistics",
        [](Address x, int dtype, std::int64_t numel, Address ranks, std::int64_t count,
           Address values, int threads) {
            Unlocked unlocked;
            return order_statistics(elements(x, dtype, numel),
                                    reinterpret_cast<const std::int64_t*>(ranks), count,
                                    reinterpret_cast<float*>(values), threads);
        },
        "The elements of these ranks.");
    module.def(
        "add_quantiles",
        [](Address x, int dtype, std::int64_t numel, std::int64_t size, Address below,
           Address fraction, std::int64_t count, Address sums, int threads) {
            Unlocked unlocked;
            return add_quantiles(elements(x, dtype, numel), size,
                                 reinterpret_cast<const std::int64_t*>(below),
                                 reinterpret_cast<const double*>(fraction), count,
                                 reinterpret_cast<double*>(sums), threads);
        },
        "Add the weighted quantiles of stretches of `size` elements to the sums.");
}

}  // namespace qmaps
