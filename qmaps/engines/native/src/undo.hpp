// What a tensor held before it was encoded anew: input that turns out to be bad brings it back.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "task.hpp"

namespace qmaps {

// The most bytes of codes that are kept. malloc returns larger memory to the system after each
// use, and touching it for the first time takes longer than reading the input twice.
inline constexpr std::int64_t kMostUndone = std::int64_t{1} << 24;

// The codes and scales of a task in blocks that carry their own scales.
class Undo {
  public:
    explicit Undo(const QuantizeTask& task) : codec_(task.codec) {
        const std::int64_t bytes = codes(task.numel);
        if (codec_.packed == nullptr || bytes > kMostUndone) return;
        codes_.reset(static_cast<std::uint8_t*>(
            ::operator new(static_cast<std::size_t>(bytes), kLine, std::nothrow)));
        if (codes_ == nullptr) return;
        for (const Part& part : codec_.geometry->parts) {
            const auto* stored = static_cast<const std::uint8_t*>(codec_.arrays[part.array]);
            scales_.emplace_back(stored, stored + part.count * scale_bytes(part.kind));
        }
    }

    // Whether there is memory, so that all of this can be done.
    explicit operator bool() const { return codes_ != nullptr; }

    // Where the kernels put the codes that they overwrite.
    std::uint8_t* memory() const { return codes_.get(); }

    // After all of the tensor was encoded.
    void restore(std::int64_t numel) const {
        std::memcpy(codec_.packed, codes_.get(), static_cast<std::size_t>(codes(numel)));
        std::size_t p = 0;
        for (const Part& part : codec_.geometry->parts) {
            std::memcpy(codec_.arrays[part.array], scales_[p].data(), scales_[p].size());
            ++p;
        }
    }

  private:
    std::int64_t codes(std::int64_t elements) const {
        return (elements * codec_.codebook->bits + 7) / 8;
    }

    static constexpr std::align_val_t kLine{64};
    struct Delete {
        void operator()(std::uint8_t* memory) const { ::operator delete(memory, kLine); }
    };

    const Codec& codec_;
    std::unique_ptr<std::uint8_t, Delete> codes_;
    std::vector<std::vector<std::uint8_t>> scales_;
};

}  // namespace qmaps
