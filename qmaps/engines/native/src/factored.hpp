// States that have fewer elements than their parameters, in a step.
#pragma once

#include <memory>
#include <vector>

#include "engine.hpp"

namespace qmaps {

// Where a parameter's factored statistics lie; `shape` is the parameter's.
void arrange_factored(ParamTask& task, const std::vector<std::int64_t>& shape);

// Decode what is quantized, and take the gradients into statistics of rows and columns: they, and
// the factors that elements take, are then those of this step.
void take_factored(std::vector<ParamTask>& tasks, const Kernels& set, int threads);

// Maxima over slices, while a step finds them.
class Slices {
  public:
    Slices(ParamTask& task, int threads);
    float* const* of(int thread) const { return maxima_->of(thread); }
    void store();  // as the new states, but for those that are quantized

  private:
    ParamTask& task_;
    std::unique_ptr<PrivateMaxima> maxima_;
};

// Encode what is quantized.
void store_factored(std::vector<ParamTask>& tasks, int threads);

}  // namespace qmaps
