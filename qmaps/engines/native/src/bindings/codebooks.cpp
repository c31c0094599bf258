#include "../kernels.hpp"
#include "arguments.hpp"
#include "register.hpp"

namespace qmaps {

void register_codebooks(nb::module_& module) {
    nb::class_<Codebook>(module, "Codebook")
        .def(nb::init<const std::vector<float>&, const std::vector<float>&,
                      const std::vector<float>&, int, bool>(),
             nb::arg("values"), nb::arg("limits"), nb::arg("below"), nb::arg("bits"),
             nb::arg("brief") = false, nb::call_guard<Ieee>())
        .def_rw("in_log", &Codebook::in_log)
        .def_rw("bend", &Codebook::bend)
        .def(
            "decode_shuffles",
            [](const Codebook& codebook) { return kernels().decode_shuffles(codebook); },
            "Permutes and packs of registers that decoding 64 codes takes; 0 where it takes others.")
        .def(
            "encode_shuffles",
            [](const Codebook& codebook, bool stochastic) {
                return kernels().encode_shuffles(codebook, stochastic);
            },
            nb::arg("stochastic"), "The same of encoding 64 elements.");

    nb::class_<Geometry>(module, "Geometry")
        .def(
            "__init__",
            [](Geometry* self, const std::vector<std::tuple<std::int64_t, std::int64_t, int, int, int>>& parts,
               bool log, int arrays, double quantile, float ratio) {
                if (parts.empty() || parts.size() > kMaxParts || arrays > kMaxParts)
                    throw std::invalid_argument("a geometry has 1 to 8 parts and arrays");
                new (self) Geometry();
                for (const auto& [divisor, count, array, ends, kind] : parts)
                    self->parts.push_back({divisor, count, array, ends, kind});
                self->log = log;
                self->arrays = arrays;
                self->quantile = quantile;
                self->ratio = ratio;
            },
            nb::arg("parts"), nb::arg("log"), nb::arg("arrays"),
            nb::arg("quantile") = 0.0, nb::arg("ratio") = 0.0f);
}

}  // namespace qmaps
