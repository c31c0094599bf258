// What tensors look like: where they lie and as what, asked of torch by its stable C interface
// (torch/csrc/inductor/aoti_torch/c/shim.h), which is found at run time: nothing of torch is
// needed to build.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace qmaps {

using Address = std::uintptr_t;

// The functions of torch that looks need, in the order in which `Torch` has them.
extern const char* const kTorchFunctions[];
extern const int kTorchFunctionCount;

// Their addresses, once and for all.
void use_torch(const std::vector<Address>& functions);

struct Look {
    std::vector<Address> address;
    // Layout, dtype, device, sizes and strides of each tensor, whether its storage holds all of
    // them and whether its negation is still to be done: the same bytes for tensors that look the
    // same.
    std::vector<std::int64_t> appearance;
};

// Of dense tensors in memory, by the addresses of their TensorImpl.
Look look(const std::vector<Address>& impls);

// Where the elements of one tensor begin, or 0 unless it is dense, contiguous, not empty, whole and
// without a negation that is still to be done.
Address plain_address(Address impl);

// Tensors that are kept alive, and looked at again and again.
class Kept {
  public:
    explicit Kept(const std::vector<Address>& impls);
    ~Kept();
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;

    // Whether they lie where they lay at first, and look as they looked.
    bool unchanged() const;

  private:
    std::vector<void*> handles_;
    std::vector<Address> impls_;
    Look first_;
};

}  // namespace qmaps
