#include "arguments.hpp"
#include "../metrics.hpp"
#include "register.hpp"

namespace qmaps {
namespace {

// A decoded moment: (codebook, geometry, packed, arrays), or the address of floats alone.
using Moment = std::tuple<const Codebook*, const Geometry*, Address, std::vector<Address>>;

StateTask moment(const Moment& described) {
    const auto& [codebook, geometry, address, arrays] = described;
    StateTask made;
    if (codebook && geometry) {
        made.codec = codec(*codebook, *geometry, address, arrays);
    } else {
        made.data = reinterpret_cast<float*>(address);
    }
    return made;
}

UpdateTask update_task(Address exact, Address v, const Moment& first, const Moment& second,
                       float eps, std::int64_t numel) {
    UpdateTask task;
    task.exact = reinterpret_cast<const float*>(exact);
    task.v = reinterpret_cast<const float*>(v);
    task.first = moment(first);
    task.second = moment(second);
    task.eps = eps;
    task.numel = numel;
    return task;
}

}  // namespace

void register_metrics(nb::module_& module) {
    module.def(
        "measure",
        [](const Codebook& codebook, const Geometry& geometry, Address x, int dtype,
           std::int64_t numel, Address packed, const std::vector<Address>& arrays,
           const Rounding& rounding, bool refuse_negative, Address counts, int threads) {
            QuantizeTask task;
            task.codec = rounding_codec(codebook, geometry, packed, arrays, rounding);
            task.x = reinterpret_cast<const void*>(x);
            task.dtype = static_cast<Dtype>(dtype);
            task.numel = numel;
            task.check = true;
            task.refuse_negative = refuse_negative;
            Measured measured;
            {
                Unlocked unlocked;
                measured = measure(task, reinterpret_cast<std::int64_t*>(counts), threads);
            }
            const ErrorSums& s = measured.sums;
            return std::make_tuple(measured.flags, s.absolute, s.square, s.signal, s.relative,
                                   s.signed_error, s.largest, s.nonzero, s.zeroed);
        },
        "Encode and sum up errors; packed = 0 drops the codes. Returns flags and ErrorSums.");

    nb::class_<UpdateErrors>(module, "UpdateErrors")
        .def(nb::init<>())
        .def("clear", &UpdateErrors::clear)
        .def("add",
             [](UpdateErrors& self, Address exact, Address v, const Moment& first,
                const Moment& second, float eps, std::int64_t numel, int threads) {
                 UpdateTask task = update_task(exact, v, first, second, eps, numel);
                 Unlocked unlocked;
                 self.add(task, threads);
             })
        .def(
            "summary",
            [](const UpdateErrors& self, const std::vector<double>& levels, int threads) {
                std::array<ErrorSummary, 2> summaries;
                {
                    Unlocked unlocked;
                    summaries = self.summaries(levels, threads);
                }
                const auto& [absolute, relative] = summaries;
                return std::make_tuple(self.numel(), self.collapsed(), absolute.sum,
                                       absolute.ranks, relative.count, relative.sum,
                                       relative.ranks);
            },
            "Ranks are those of the levels, then the largest; none without elements.");

    module.def(
        "add_update_grid",
        [](Address exact, const Moment& first, const Moment& second, float eps,
           std::int64_t numel, const std::vector<Address>& sums, int threads) {
            UpdateTask task = update_task(exact, 0, first, second, eps, numel);
            double* to[4];
            for (int i = 0; i < 4; ++i) to[i] = reinterpret_cast<double*>(sums.at(i));
            Unlocked unlocked;
            add_update_grid(task, to[0], to[1], to[2], to[3], threads);
        },
        "Add counts, absolute and relative errors and elements with u != 0, by pair of codes.");
}

}  // namespace qmaps
