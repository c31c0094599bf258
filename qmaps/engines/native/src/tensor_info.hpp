// Addresses, dtypes, sizes and strides of tensors, by torch's stable C interface
// (torch/csrc/inductor/aoti_torch/c/shim.h). It is found at run time, so that building needs nothing of
// torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace qmaps {

using Address = std::uintptr_t;

// The functions of torch used here, in the order of `Torch`.
extern const char* const kTorchFunctions[];
extern const int kTorchFunctionCount;

// Set their addresses; call it first.
void use_torch(const std::vector<Address>& functions);

struct TensorInfo {
    std::vector<Address> address;
    // Of each tensor: layout, dtype, device, sizes and strides, whether its storage holds all
    // elements, and whether a negation is pending.
    std::vector<std::int64_t> attributes;
};

// The tensors with these TensorImpl.
TensorInfo tensor_info(const std::vector<Address>& impls);

// Address of the first element of a tensor; 0 unless it is dense, contiguous, not empty and complete,
// with no pending negation.
Address plain_address(Address impl);

// Tensors that are kept alive and compared with their first state before each use.
class WatchedTensors {
  public:
    explicit WatchedTensors(const std::vector<Address>& impls);
    ~WatchedTensors();
    WatchedTensors(const WatchedTensors&) = delete;
    WatchedTensors& operator=(const WatchedTensors&) = delete;

    // True if addresses and attributes are unchanged.
    bool unchanged() const;

  private:
    std::vector<void*> handles_;
    std::vector<Address> impls_;
    TensorInfo first_;
};

}  // namespace qmaps
