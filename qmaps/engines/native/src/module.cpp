// The Python module: turns numbers and addresses into tasks. Shapes, types and contiguity are
// checked by qmaps.engines.native, which owns the tensors.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>

#include "engine.hpp"
#include "least_squares.hpp"
#include "looks.hpp"
#include "metrics.hpp"
#include "quantiles.hpp"
#include "step.hpp"

namespace nb = nanobind;
using namespace qmaps;

namespace {

using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t,
                       std::uint64_t>;

NoiseKey noise_key(const Key& key) {
    NoiseKey noise;
    std::tie(noise.key0, noise.key1, noise.word1, noise.word2, noise.word3, noise.offset) = key;
    return noise;
}

Codec codec(const Codebook& book, const Geometry& geometry, Address packed,
            const std::vector<Address>& arrays) {
    if (static_cast<int>(arrays.size()) != geometry.arrays)
        throw std::invalid_argument("scales: " + std::to_string(arrays.size()) + " arrays, " +
                                    std::to_string(geometry.arrays) + " are needed");
    Codec made;
    made.book = &book;
    made.geometry = &geometry;
    made.packed = reinterpret_cast<std::uint8_t*>(packed);
    for (std::size_t i = 0; i < arrays.size(); ++i)
        made.arrays[i] = reinterpret_cast<void*>(arrays[i]);
    return made;
}

// One that rounds stochastically where there is a key.
Codec rounding_codec(const Codebook& book, const Geometry& geometry, Address packed,
                     const std::vector<Address>& arrays, const std::vector<Key>& key) {
    Codec made = codec(book, geometry, packed, arrays);
    made.stochastic = !key.empty();
    if (!key.empty()) made.noise = noise_key(key.front());
    return made;
}

Elements elements(Address x, int dtype, std::int64_t numel) {
    return {reinterpret_cast<const void*>(x), static_cast<Dtype>(dtype), numel};
}

// Each returns the number of elements that are NaN or infinite.
void register_quantiles(nb::module_& module) {
    module.def(
        "order_statistics",
        [](Address x, int dtype, std::int64_t numel, Address ranks, std::int64_t count,
           Address values, int threads) {
            nb::gil_scoped_release unlocked;
            return order_statistics(elements(x, dtype, numel),
                                    reinterpret_cast<const std::int64_t*>(ranks), count,
                                    reinterpret_cast<float*>(values), threads);
        },
        "The elements of these ranks.");
    module.def(
        "leading_bits",
        [](Address x, int dtype, std::int64_t numel, Address ranks, std::int64_t count,
           Address found, int threads) {
            auto* bits = reinterpret_cast<std::int64_t*>(found);
            nb::gil_scoped_release unlocked;
            return leading_bits(elements(x, dtype, numel),
                                reinterpret_cast<const std::int64_t*>(ranks), count, bits,
                                bits + count, bits + 2 * count, threads);
        },
        "For each rank the leading bits, the elements in lower cells, and those in its own.");
    module.def(
        "add_quantiles",
        [](Address x, int dtype, std::int64_t numel, std::int64_t size, Address below,
           Address fraction, std::int64_t count, Address sums, int threads) {
            nb::gil_scoped_release unlocked;
            return add_quantiles(elements(x, dtype, numel), size,
                                 reinterpret_cast<const std::int64_t*>(below),
                                 reinterpret_cast<const double*>(fraction), count,
                                 reinterpret_cast<double*>(sums), threads);
        },
        "Add the weighted quantiles of stretches of `size` elements to the sums.");
}

// A decoded moment: (codebook, geometry, packed, arrays), or the address of floats alone.
using Moment = std::tuple<const Codebook*, const Geometry*, Address, std::vector<Address>>;

StateTask moment(const Moment& given) {
    const auto& [book, geometry, address, arrays] = given;
    StateTask made;
    if (book && geometry) {
        made.codec = codec(*book, *geometry, address, arrays);
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

void register_metrics(nb::module_& module) {
    module.def(
        "measure",
        [](const Codebook& book, const Geometry& geometry, Address x, int dtype,
           std::int64_t numel, Address packed, const std::vector<Address>& arrays,
           const std::vector<Key>& key, bool refuse_negative, Address counts, int threads) {
            QuantizeTask task;
            task.codec = codec(book, geometry, packed, arrays);
            task.codec.stochastic = !key.empty();
            if (!key.empty()) task.codec.noise = noise_key(key.front());
            task.x = reinterpret_cast<const void*>(x);
            task.dtype = static_cast<Dtype>(dtype);
            task.numel = numel;
            task.check = true;
            task.refuse_negative = refuse_negative;
            Measured found;
            {
                nb::gil_scoped_release unlocked;
                found = measure(task, reinterpret_cast<std::int64_t*>(counts), threads);
            }
            const ErrorSums& s = found.sums;
            return std::make_tuple(found.flags, s.absolute, s.square, s.signal, s.relative,
                                   s.largest, s.nonzero, s.zeroed);
        },
        "Encode and sum up errors; packed = 0 drops the codes. Returns flags and ErrorSums.");

    nb::class_<UpdateErrors>(module, "UpdateErrors")
        .def(nb::init<>())
        .def("clear", &UpdateErrors::clear)
        .def("add",
             [](UpdateErrors& self, Address exact, Address v, const Moment& first,
                const Moment& second, float eps, std::int64_t numel, int threads) {
                 UpdateTask task = update_task(exact, v, first, second, eps, numel);
                 nb::gil_scoped_release unlocked;
                 self.add(task, threads);
             })
        .def(
            "summary",
            [](const UpdateErrors& self, const std::vector<double>& levels, int threads) {
                std::array<ErrorSummary, 2> found;
                {
                    nb::gil_scoped_release unlocked;
                    found = self.summaries(levels, threads);
                }
                const auto& [absolute, relative] = found;
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
            nb::gil_scoped_release unlocked;
            add_update_grid(task, to[0], to[1], to[2], to[3], threads);
        },
        "Add counts, absolute and relative errors and elements with u != 0, by pair of codes.");
}

void register_least_squares(nb::module_& module) {
    // Sorted data and its prefix sums: addresses of x, w, wx and wxx, and the number of values.
    using DataAt = std::tuple<Address, Address, Address, Address, std::int64_t>;
    const auto data = [](const DataAt& at) {
        const auto& [x, w, wx, wxx, count] = at;
        return SortedData{reinterpret_cast<double*>(x), reinterpret_cast<double*>(w),
                          reinterpret_cast<double*>(wx), reinterpret_cast<double*>(wxx), count};
    };
    module.def("sort_data", [data](Address values, Address weights, const DataAt& to) {
        nb::gil_scoped_release unlocked;
        sort_data(reinterpret_cast<const float*>(values),
                  reinterpret_cast<const double*>(weights), data(to));
    });
    module.def("partition", [](Address w, Address wx, Address wxx, std::int64_t count, int size) {
        nb::gil_scoped_release unlocked;
        return partition(reinterpret_cast<const double*>(w), reinterpret_cast<const double*>(wx),
                         reinterpret_cast<const double*>(wxx), count, size);
    });
    module.def("refine", [data](const DataAt& at, Address codebook, int size, int sweeps,
                                 double tolerance) {
        nb::gil_scoped_release unlocked;
        refine(data(at), reinterpret_cast<double*>(codebook), size, sweeps, tolerance);
    });
}

// A look as a list of addresses and the bytes of what else there is to see.
nb::tuple look_of(const std::vector<Address>& impls) {
    const Look found = look(impls);
    return nb::make_tuple(found.address,
                          nb::bytes(found.appearance.data(),
                                    found.appearance.size() * sizeof(found.appearance[0])));
}

void register_looks(nb::module_& module) {
    module.attr("torch_functions") =
        std::vector<std::string>(kTorchFunctions, kTorchFunctions + kTorchFunctionCount);
    module.def("use_torch", &use_torch, "The addresses of `torch_functions`, before any look.");
    module.def("look", &look_of, "Addresses and appearance of tensors, given their `_cdata`.");
    module.def("plain_address", &plain_address,
               "Where a tensor begins, given its `_cdata`; 0 unless it is plain and contiguous.");
    nb::class_<Kept>(module, "Kept")
        .def(nb::init<const std::vector<Address>&>())
        .def("unchanged", &Kept::unchanged);
}

}  // namespace

NB_MODULE(_core, module) {
    module.doc() = "The native engine of qmaps; use it through qmaps.";

    nb::class_<Codebook>(module, "Codebook")
        .def(nb::init<const std::vector<float>&, const std::vector<float>&,
                      const std::vector<float>&, int, bool>(),
             nb::arg("values"), nb::arg("limits"), nb::arg("below"), nb::arg("bits"),
             nb::arg("brief") = false);

    nb::class_<Geometry>(module, "Geometry")
        .def(
            "__init__",
            [](Geometry* self, const std::vector<std::tuple<std::int64_t, std::int64_t, int, int>>& parts,
               bool log, int arrays) {
                if (parts.empty() || parts.size() > kMaxParts || arrays > kMaxParts)
                    throw std::invalid_argument("a geometry has 1 to 8 parts and arrays");
                new (self) Geometry();
                for (const auto& [divisor, count, array, ends] : parts)
                    self->parts.push_back({divisor, count, array, ends});
                self->log = log;
                self->arrays = arrays;
            },
            nb::arg("parts"), nb::arg("log"), nb::arg("arrays"));

    module.def(
        "quantize",
        [](const Codebook& book, const Geometry& geometry, Address x, int dtype,
           std::int64_t numel, Address packed, const std::vector<Address>& arrays,
           const std::vector<Key>& key, bool check, bool keep, bool refuse_negative, int threads) {
            QuantizeTask task;
            task.codec = codec(book, geometry, packed, arrays);
            task.codec.stochastic = !key.empty();
            if (!key.empty()) task.codec.noise = noise_key(key.front());
            task.x = reinterpret_cast<const void*>(x);
            task.dtype = static_cast<Dtype>(dtype);
            task.numel = numel;
            task.check = check;
            task.keep = keep;
            task.refuse_negative = refuse_negative;
            nb::gil_scoped_release unlocked;
            return quantize(task, threads);
        },
        "Encode a tensor; returns 1 if it saw NaN or infinity, plus 2 if a refused negative.");

    module.def(
        "dequantize",
        [](const Codebook& book, const Geometry& geometry, Address packed,
           const std::vector<Address>& arrays, Address y, int dtype, std::int64_t numel,
           int threads) {
            DequantizeTask task;
            task.codec = codec(book, geometry, packed, arrays);
            task.y = reinterpret_cast<void*>(y);
            task.dtype = static_cast<Dtype>(dtype);
            task.numel = numel;
            nb::gil_scoped_release unlocked;
            dequantize(task, threads);
        },
        "Decode a tensor.");

    register_looks(module);
    register_metrics(module);
    register_least_squares(module);

    nb::class_<Step>(module, "Step")
        .def(nb::init<>())
        .def("add_parameter", &Step::add_parameter, nb::arg("rule"), nb::arg("states"),
             nb::arg("numel"), nb::arg("p_dtype"), nb::arg("g_dtype"))
        .def("add_rounding", [](Step& self, const Key& key) { self.add_rounding(noise_key(key)); })
        .def(
            "add_parameter_codes",
            [](Step& self, const Codebook& book, const Geometry& geometry, Address packed,
               const std::vector<Address>& arrays, const std::vector<Key>& key) {
                self.add_parameter_codes(rounding_codec(book, geometry, packed, arrays, key));
            },
            nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
        .def(
            "add_gradient_codes",
            [](Step& self, const Codebook& book, const Geometry& geometry, Address packed,
               const std::vector<Address>& arrays) {
                self.add_gradient_codes(codec(book, geometry, packed, arrays));
            },
            nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
        .def("add_floats",
             [](Step& self, Address data) { self.add_floats(reinterpret_cast<float*>(data)); })
        .def(
            "add_quantized",
            [](Step& self, const Codebook& book, const Geometry& geometry, Address packed,
               const std::vector<Address>& arrays, const std::vector<Key>& key) {
                self.add_quantized(rounding_codec(book, geometry, packed, arrays, key));
            },
            // The step keeps pointers to both.
            nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
        .def("arrange_sides", &Step::arrange_sides, nb::arg("shape"))
        .def("add_side_floats",
             [](Step& self, Address data, std::int64_t size) {
                 self.add_side_floats(reinterpret_cast<float*>(data), size);
             })
        .def(
            "add_side_quantized",
            [](Step& self, std::int64_t size, const Codebook& book, const Geometry& geometry,
               Address packed, const std::vector<Address>& arrays, const std::vector<Key>& key) {
                Codec made = codec(book, geometry, packed, arrays);
                made.stochastic = !key.empty();
                if (!key.empty()) made.noise = noise_key(key.front());
                self.add_side_quantized(std::move(made), size);
            },
            nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
        .def(
            "run",
            [](Step& self, const std::vector<Address>& p, const std::vector<Address>& g,
               const std::vector<std::vector<float>>& scalars, const std::vector<int>& group,
               const std::vector<std::uint64_t>& steps, int threads) {
                if (p.size() != self.size() || g.size() != self.size() ||
                    group.size() != self.size() || steps.size() != self.size())
                    throw std::invalid_argument("p, g, group and steps have one entry a parameter");
                for (std::size_t i = 0; i < self.size(); ++i) {
                    ParamTask& task = self.at(i);
                    task.p = reinterpret_cast<void*>(p[i]);
                    task.g = reinterpret_cast<const void*>(g[i]);
                    const auto& constants = scalars.at(static_cast<std::size_t>(group[i]));
                    if (static_cast<int>(constants.size()) != task.rule->scalars)
                        throw std::invalid_argument(
                            "the rule has " + std::to_string(task.rule->scalars) + " scalars");
                    std::copy(constants.begin(), constants.end(), task.scalars);
                    task.p_noise.take(steps[i]);
                    task.p_codec.noise.take(steps[i]);
                    for (StateTask& state : task.state) state.codec.noise.take(steps[i]);
                    for (Side& side : task.sides.side) side.codec.noise.take(steps[i]);
                }
                nb::gil_scoped_release unlocked;
                self.run(threads);
            },
            nb::arg("p"), nb::arg("g"), nb::arg("scalars"), nb::arg("group"), nb::arg("steps"),
            nb::arg("threads"));

    register_quantiles(module);

    module.def(
        "rules",
        [] {
            std::vector<std::tuple<std::string, std::string>> names;
            const Rules& rules = kernels().rules;
            for (int i = 0; i < rules.count; ++i)
                names.emplace_back(rules.rule[i].name, rules.rule[i].state_names);
            return names;
        },
        "Every rule that steps take: its name, and the states that it has.");
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
    module.attr("openmp") =
#if defined(_OPENMP)
        true;
#else
        false;
#endif
}
