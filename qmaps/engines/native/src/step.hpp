// A whole optimizer step: many parameters, one team of threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine.hpp"

namespace qmaps {

// The parameters of an optimizer, with what does not change from step to step.
class Step {
  public:
    Step();
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

    // The rule is named by itself and by the states that it has under the parameter's options.
    // They are added to the parameter added last, in the rule's order.
    void add_parameter(const std::string& rule, const std::string& states,
                       const std::vector<std::int64_t>& shape, int p_dtype, int g_dtype);
    // New values of the bfloat16 parameter added last are rounded stochastically.
    void add_rounding(const NoiseKey& noise);
    // The parameter added last is a master copy, and rounded to bfloat16 there after each step.
    void add_rounded(void* rounded) { tasks_.back().rounded = rounded; }
    // The bfloat16 parameter added last has remainders of 1 or 2 bytes per element.
    void add_remainder(void* remainder, int bytes) {
        tasks_.back().remainder = remainder;
        tasks_.back().remainder_bytes = bytes;
    }
    // The parameter added last, and its gradient, are codes. The parameter's scales belong to
    // blocks that fit into the scratch.
    void add_parameter_codes(Codec codec);
    void add_gradient_codes(Codec codec);
    void add_floats(float* data);
    void add_quantized(Codec codec);
    // The state added last leaves its new scales, a list for each part, to the caller.
    void add_shared_scales(std::vector<float*> scales);
    // States of fewer elements than the parameter: all of them, in their order.
    void add_factored_floats(float* data, std::int64_t size);
    void add_factored_quantized(Codec codec, std::int64_t size);

    ParamTask& at(std::size_t number) { return tasks_.at(number); }
    std::size_t size() const { return tasks_.size(); }

    // Update every parameter, in two halves; p, g, scalars and noise keys have been set. After the
    // first, shared scales are the largest magnitudes here. The second takes what the caller has
    // made of them.
    void begin(int threads);
    void finish(int threads);

  private:
    // States whose scales span more than a block: their maxima come first.
    struct MultiBlock {
        std::vector<PrivateMaxima> maxima;    // per multi-block state
        std::vector<std::vector<Ends>> ends;  // the same
        std::vector<int> state;               // which state each is
    };
    struct Item {
        std::uint32_t parameter;
        std::int64_t begin, end;
    };
    StateTask& next_state();
    void arrange();
    void take_norms(int threads);

    const Kernels& set_;
    std::vector<ParamTask> tasks_;
    std::vector<int> states_added_;
    std::vector<Item> items_;
    std::vector<std::unique_ptr<MultiBlock>> multi_block_;  // between both halves
    bool arranged_ = false;
};

}  // namespace qmaps
