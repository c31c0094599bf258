#include "../looks.hpp"
#include "arguments.hpp"
#include "register.hpp"

namespace qmaps {
namespace {

// A look as a list of addresses and the bytes of what else there is to see.
nb::tuple look_of(const std::vector<Address>& impls) {
    const Look found = look(impls);
    return nb::make_tuple(found.address,
                          nb::bytes(found.appearance.data(),
                                    found.appearance.size() * sizeof(found.appearance[0])));
}

}  // namespace

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

}  // namespace qmaps
