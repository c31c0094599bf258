#include "../tensor_info.hpp"
#include "arguments.hpp"
#include "register.hpp"

namespace qmaps {
namespace {

// A list of addresses, and the bytes of all other attributes.
nb::tuple info_of(const std::vector<Address>& impls) {
    const TensorInfo info = tensor_info(impls);
    return nb::make_tuple(info.address,
                          nb::bytes(info.attributes.data(),
                                    info.attributes.size() * sizeof(info.attributes[0])));
}

}  // namespace

void register_tensor_info(nb::module_& module) {
    module.attr("torch_functions") =
        std::vector<std::string>(kTorchFunctions, kTorchFunctions + kTorchFunctionCount);
    module.def("use_torch", &use_torch, "Set the addresses of `torch_functions`; call it first.");
    module.def("tensor_info", &info_of, "Addresses and attributes of tensors with these `_cdata`.");
    module.def("plain_address", &plain_address,
               "Address of a tensor with this `_cdata`; 0 unless it is plain and contiguous.");
    nb::class_<WatchedTensors>(module, "WatchedTensors")
        .def(nb::init<const std::vector<Address>&>())
        .def("unchanged", &WatchedTensors::unchanged);
}

}  // namespace qmaps
