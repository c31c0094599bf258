// Whole calls: what the Python module exposes, with threads and passes arranged.
#pragma once

#include <functional>

#include "kernels.hpp"

namespace qmaps {

// Memory of this thread, kept between calls.
Scratch& scratch();
StepScratch& step_scratch();

// Fill in what follows from the geometry, and the grids of 8-bit scales if there are some.
void prepare(Codec& codec, const Kernels& set, std::int64_t numel, bool stored_scales);

// Zeroed maxima for every part.
void reserve_fresh(Codec& codec);
// The same in memory of the caller's.
void take_fresh(Codec& codec, const std::vector<float*>& memory);

// Maxima of each thread, its own where threads would otherwise write to the same places.
class PrivateMaxima {
  public:
    PrivateMaxima(const Codec& codec, std::int64_t numel, int threads);
    float* const* of(int thread) const {
        return slots_.data() + thread * codec_.geometry->parts.size();
    }
    void merge();  // into the codec's fresh scales

  private:
    const Codec& codec_;
    int threads_;
    std::vector<float> memory_;
    std::vector<float*> slots_;
};

// The smallest and the largest scale of parts that share a grid; `low` is the level of scales in
// e4m3 instead.
struct Ends {
    float low = 0.0f, high = 0.0f;
};

// Raise fresh scales to their 8-bit grids.
void round_up_scales(Codec& codec, const Kernels& set, std::vector<Ends>& ends, int threads);

// Write the fresh scales where scales are stored.
void commit_scales(const Codec& codec, const std::vector<Ends>& ends);

// Items of work that a tensor makes for `encode`.
std::int64_t items_of(const QuantizeTask& task);

// What is done to [begin, end), item number `item`; returns Flags.
using EncodeRange = std::function<int(std::int64_t begin, std::int64_t end, std::int64_t item,
                                      int thread)>;

// Find the scales, encode by `local` (in blocks that carry their own scales) or by `fresh` (under
// the codec's fresh scales), and store the scales. Returns Flags.
int encode(QuantizeTask& task, int threads, const EncodeRange& local, const EncodeRange& fresh);

// Returns Flags.
int quantize(QuantizeTask& task, int threads);
void dequantize(DequantizeTask& task, int threads);

}  // namespace qmaps
