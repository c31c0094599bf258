// Whole calls: what the Python module exposes, with threads and passes arranged.
#pragma once

#include "kernels.hpp"

namespace qmaps {

// Memory of this thread, kept between calls.
Scratch& scratch();

// Fill in what follows from the geometry, and the grids of 8-bit scales if there are some.
void prepare(Codec& codec, const Kernels& set, std::int64_t numel, bool stored_scales);

// Zeroed maxima for every part.
void reserve_fresh(Codec& codec);

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

// The smallest and the largest scale of parts that share an 8-bit grid.
struct Ends {
    float low, high;
};

// Raise fresh scales to their 8-bit grids.
void round_up_scales(Codec& codec, const Kernels& set, std::vector<Ends>& ends);

// Write the fresh scales where scales are stored.
void commit_scales(const Codec& codec, const Kernels& set, const std::vector<Ends>& ends);

// Returns Flags.
int quantize(QuantizeTask& task, int threads);
void dequantize(DequantizeTask& task, int threads);

}  // namespace qmaps
