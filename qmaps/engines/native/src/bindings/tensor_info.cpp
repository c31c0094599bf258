#include "../tensor_info.hpp"

#include <algorithm>
#include <stdexcept>

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

// The classes of tensors whose attributes are those of their TensorImpl.
std::vector<PyTypeObject*> torch_classes;

void use(const std::vector<Address>& functions, const std::vector<nb::type_object>& classes) {
    use_torch(functions);
    torch_classes.clear();
    for (const nb::type_object& of_torch : classes)
        torch_classes.push_back(reinterpret_cast<PyTypeObject*>(of_torch.ptr()));
}

// 0 may also mean that the address is not known: of other classes, and where torch does not tell it,
// as of nested tensors and inside a transform of torch.func.
Address plain_address_of(nb::handle tensor) {
    const auto found = std::find(torch_classes.begin(), torch_classes.end(), Py_TYPE(tensor.ptr()));
    if (found == torch_classes.end()) return 0;
    try {
        return plain_address(nb::cast<Address>(tensor.attr("_cdata")));
    } catch (const std::runtime_error&) {
        return 0;
    }
}

}  // namespace

void register_tensor_info(nb::module_& module) {
    module.attr("torch_functions") =
        std::vector<std::string>(kTorchFunctions, kTorchFunctions + kTorchFunctionCount);
    module.def("use_torch", &use,
               "Set the addresses of `torch_functions`, and torch's own classes; call it first.");
    module.def("tensor_info", &info_of, "Addresses and attributes of tensors with these `_cdata`.");
    module.def("plain_address", &plain_address_of,
               "Address of a tensor that is plain, contiguous and not empty; 0 for most others.");
    nb::class_<WatchedTensors>(module, "WatchedTensors")
        .def(nb::init<const std::vector<Address>&>())
        .def("unchanged", &WatchedTensors::unchanged);
}

}  // namespace qmaps
