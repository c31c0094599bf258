#include "tensor_info.hpp"

#include <stdexcept>

namespace qmaps {
namespace {

// at::Tensor is one pointer, to the TensorImpl; torch's interface takes the address of such a one.
using Handle = void*;
using Error = std::int32_t;

struct Torch {
    Error (*get_layout)(Handle, std::int32_t*);
    Error (*get_dtype)(Handle, std::int32_t*);
    Error (*get_device_type)(Handle, std::int32_t*);
    Error (*get_device_index)(Handle, std::int32_t*);
    Error (*is_contiguous)(Handle, bool*);
    Error (*get_numel)(Handle, std::int64_t*);
    Error (*get_dim)(Handle, std::int64_t*);
    Error (*get_sizes)(Handle, std::int64_t**);
    Error (*get_strides)(Handle, std::int64_t**);
    Error (*get_storage_offset)(Handle, std::int64_t*);
    Error (*get_storage_size)(Handle, std::int64_t*);
    Error (*get_data_ptr)(Handle, void**);
    std::size_t (*dtype_element_size)(std::int32_t);
    Error (*new_tensor_handle)(Handle, Handle*);
    Error (*delete_tensor_object)(Handle);
    // Of at::native and no part of the C interface: whether a tensor's negation is still to be done.
    bool (*is_neg)(const void*);
};

Torch torch;

constexpr std::int32_t kStrided = 0;

void check(Error error) {
    if (error) throw std::runtime_error("torch does not tell the attributes of a tensor");
}

// The bytes of a storage that a dense tensor whose last element is `last` elements from its first
// needs, and whether it has them.
bool is_whole(Handle tensor, std::int32_t dtype, std::int64_t last) {
    std::int64_t offset, bytes;
    check(torch.get_storage_offset(tensor, &offset));
    check(torch.get_storage_size(tensor, &bytes));
    const auto element = static_cast<std::int64_t>(torch.dtype_element_size(dtype));
    return (offset + last + 1) * element <= bytes;
}

void add(TensorInfo& to, Handle tensor) {
    std::int32_t layout, dtype, device, index;
    check(torch.get_layout(tensor, &layout));
    to.attributes.push_back(layout);
    to.address.push_back(0);
    if (layout != kStrided) return;  // not dense: it has no sizes and strides in memory
    check(torch.get_dtype(tensor, &dtype));
    check(torch.get_device_type(tensor, &device));
    check(torch.get_device_index(tensor, &index));
    std::int64_t dims;
    std::int64_t *sizes, *strides;
    check(torch.get_dim(tensor, &dims));
    check(torch.get_sizes(tensor, &sizes));
    check(torch.get_strides(tensor, &strides));
    to.attributes.insert(to.attributes.end(), {dtype, device, index, dims});
    to.attributes.insert(to.attributes.end(), sizes, sizes + dims);
    to.attributes.insert(to.attributes.end(), strides, strides + dims);
    std::int64_t last = 0;
    bool empty = false;
    for (std::int64_t d = 0; d < dims; ++d) {
        empty = empty || sizes[d] == 0;
        last += (sizes[d] - 1) * strides[d];
    }
    void* data = nullptr;
    if (!empty && is_whole(tensor, dtype, last)) check(torch.get_data_ptr(tensor, &data));
    to.attributes.push_back((empty || data != nullptr) + 2 * torch.is_neg(tensor));
    to.address.back() = reinterpret_cast<Address>(data);
}

void collect(TensorInfo& info, const std::vector<Address>& impls) {
    info.address.clear();
    info.attributes.clear();
    for (Address impl : impls) {
        void* pointer = reinterpret_cast<void*>(impl);
        add(info, &pointer);
    }
}

}  // namespace

const char* const kTorchFunctions[] = {
    "aoti_torch_get_layout",         "aoti_torch_get_dtype",
    "aoti_torch_get_device_type",    "aoti_torch_get_device_index",
    "aoti_torch_is_contiguous",      "aoti_torch_get_numel",
    "aoti_torch_get_dim",            "aoti_torch_get_sizes",
    "aoti_torch_get_strides",        "aoti_torch_get_storage_offset",
    "aoti_torch_get_storage_size",   "aoti_torch_get_data_ptr",
    "aoti_torch_dtype_element_size", "aoti_torch_new_tensor_handle",
    "aoti_torch_delete_tensor_object",
    "_ZN2at6native6is_negERKNS_6TensorE"};
const int kTorchFunctionCount = sizeof kTorchFunctions / sizeof *kTorchFunctions;

void use_torch(const std::vector<Address>& functions) {
    if (static_cast<int>(functions.size()) != kTorchFunctionCount)
        throw std::invalid_argument("one address a function is needed");
    const Address* next = functions.data();
    const auto take = [&next](auto& function) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(*next++);
    };
    take(torch.get_layout);
    take(torch.get_dtype);
    take(torch.get_device_type);
    take(torch.get_device_index);
    take(torch.is_contiguous);
    take(torch.get_numel);
    take(torch.get_dim);
    take(torch.get_sizes);
    take(torch.get_strides);
    take(torch.get_storage_offset);
    take(torch.get_storage_size);
    take(torch.get_data_ptr);
    take(torch.dtype_element_size);
    take(torch.new_tensor_handle);
    take(torch.delete_tensor_object);
    take(torch.is_neg);
}

Address plain_address(Address impl) {
    void* pointer = reinterpret_cast<void*>(impl);
    Handle tensor = &pointer;
    std::int32_t layout, dtype;
    std::int64_t numel, *sizes;
    bool contiguous;
    void* data;
    check(torch.get_layout(tensor, &layout));
    if (layout != kStrided) return 0;
    check(torch.get_sizes(tensor, &sizes));  // a strided tensor without sizes is a nested one
    check(torch.is_contiguous(tensor, &contiguous));
    check(torch.get_numel(tensor, &numel));
    check(torch.get_dtype(tensor, &dtype));
    if (!contiguous || numel == 0 || torch.is_neg(tensor)) return 0;
    if (!is_whole(tensor, dtype, numel - 1)) return 0;
    check(torch.get_data_ptr(tensor, &data));
    return reinterpret_cast<Address>(data);
}

TensorInfo tensor_info(const std::vector<Address>& impls) {
    TensorInfo info;
    info.address.reserve(impls.size());
    info.attributes.reserve(12 * impls.size());
    collect(info, impls);
    return info;
}

WatchedTensors::WatchedTensors(const std::vector<Address>& impls) : impls_(impls), first_(tensor_info(impls)) {
    for (Address impl : impls) {
        void* pointer = reinterpret_cast<void*>(impl);
        Handle handle;
        check(torch.new_tensor_handle(&pointer, &handle));
        handles_.push_back(handle);
    }
}

WatchedTensors::~WatchedTensors() {
    for (Handle handle : handles_) torch.delete_tensor_object(handle);
}

bool WatchedTensors::unchanged() const {
    static thread_local TensorInfo now;  // keeps its memory from one step to the next
    collect(now, impls_);
    return now.address == first_.address && now.attributes == first_.attributes;
}

}  // namespace qmaps
