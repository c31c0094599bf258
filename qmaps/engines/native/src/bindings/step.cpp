#include "../step.hpp"
#include "arguments.hpp"
#include "register.hpp"

namespace qmaps {

namespace {

// The first half of a step, with what changes from step to step.
void begin(Step& self, const std::vector<Address>& p, const std::vector<Address>& g,
           const std::vector<std::vector<float>>& scalars, const std::vector<int>& group,
           const std::vector<std::uint64_t>& steps, int threads) {
    if (p.size() != self.size() || g.size() != self.size() || group.size() != self.size() ||
        steps.size() != self.size())
        throw std::invalid_argument("p, g, group and steps have one entry a parameter");
    for (std::size_t i = 0; i < self.size(); ++i) {
        ParamTask& task = self.at(i);
        task.p = reinterpret_cast<void*>(p[i]);
        task.g = reinterpret_cast<const void*>(g[i]);
        const auto& values = scalars.at(static_cast<std::size_t>(group[i]));
        if (static_cast<int>(values.size()) != task.rule->scalars)
            throw std::invalid_argument("the rule has " + std::to_string(task.rule->scalars) +
                                        " scalars");
        std::copy(values.begin(), values.end(), task.scalars);
        task.p_noise.take(steps[i]);
        task.p_codec.noise.take(steps[i]);
        for (StateTask& state : task.state) state.codec.noise.take(steps[i]);
        for (FactoredState& state : task.factored.state) state.codec.noise.take(steps[i]);
    }
    Unlocked unlocked;
    self.begin(threads);
}

}  // namespace

void register_step(nb::module_& module) {
    nb::class_<Step>(module, "Step")
        .def(nb::init<>())
        .def("add_parameter", &Step::add_parameter, nb::arg("rule"), nb::arg("states"),
             nb::arg("shape"), nb::arg("p_dtype"), nb::arg("g_dtype"))
        .def("add_rounding", [](Step& self, const Key& key) { self.add_rounding(noise_key(key)); })
        .def("add_rounded",
             [](Step& self, Address rounded) { self.add_rounded(reinterpret_cast<void*>(rounded)); })
        .def("add_remainder",
             [](Step& self, Address remainder, int bytes) {
                 self.add_remainder(reinterpret_cast<void*>(remainder), bytes);
             })
        .def(
            "add_parameter_codes",
            [](Step& self, const Codebook& codebook, const Geometry& geometry, Address packed,
               const std::vector<Address>& arrays, const Rounding& rounding) {
                self.add_parameter_codes(
                    rounding_codec(codebook, geometry, packed, arrays, rounding));
            },
            nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
        .def(
            "add_gradient_codes",
            [](Step& self, const Codebook& codebook, const Geometry& geometry, Address packed,
               const std::vector<Address>& arrays) {
                self.add_gradient_codes(codec(codebook, geometry, packed, arrays));
            },
            nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
        .def("add_floats",
             [](Step& self, Address data) { self.add_floats(reinterpret_cast<float*>(data)); })
        .def(
            "add_quantized",
            [](Step& self, const Codebook& codebook, const Geometry& geometry, Address packed,
               const std::vector<Address>& arrays, const Rounding& rounding) {
                self.add_quantized(rounding_codec(codebook, geometry, packed, arrays, rounding));
            },
            // The step keeps pointers to both.
            nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
        .def("add_shared_scales",
             [](Step& self, const std::vector<Address>& scales) {
                 std::vector<float*> memory;
                 for (const Address at : scales) memory.push_back(reinterpret_cast<float*>(at));
                 self.add_shared_scales(std::move(memory));
             })
        .def("add_factored_floats",
             [](Step& self, Address data, std::int64_t size) {
                 self.add_factored_floats(reinterpret_cast<float*>(data), size);
             })
        .def(
            "add_factored_quantized",
            [](Step& self, std::int64_t size, const Codebook& codebook, const Geometry& geometry,
               Address packed, const std::vector<Address>& arrays, const Rounding& rounding) {
                self.add_factored_quantized(
                    rounding_codec(codebook, geometry, packed, arrays, rounding), size);
            },
            nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
        .def("begin", &begin, nb::arg("p"), nb::arg("g"), nb::arg("scalars"), nb::arg("group"),
             nb::arg("steps"), nb::arg("threads"))
        .def("finish", &Step::finish, nb::arg("threads"), nb::call_guard<Unlocked>());
}

}  // namespace qmaps
