#include "step.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "parallel.hpp"
#include "factored.hpp"

namespace qmaps {
namespace {

// Elements from which on a tensor has enough scales for all threads.
constexpr std::int64_t kLarge = std::int64_t{1} << 20;

const Rule* find_rule(const Rules& rules, const std::string& name, const std::string& states) {
    for (int i = 0; i < rules.count; ++i)
        if (name == rules.rule[i].name && states == rules.rule[i].state_names)
            return rules.rule + i;
    throw std::invalid_argument("rule '" + name + "' with states '" + states +
                                "' is not known to the native engine");
}

// Whole blocks of every state and whole bytes of codes, or states demoted to two passes where
// no stretch of the scratch's size holds whole blocks of all.
void choose_stretch(ParamTask& task) {
    std::int64_t least = 8;
    if (Codec& codec = task.p_codec; codec.codebook) {
        codec.block = codec.geometry->local_block(task.numel);
        if (codec.block == 0)
            throw std::invalid_argument("a parameter's scales span more than a block");
        least = std::lcm(least, codec.block);
    }
    // What needs whole blocks knows no second way, so it chooses first.
    for (int k = 0; k < 2 * task.rule->states; ++k) {
        const StateTask& state = task.state[k % task.rule->states];
        Codec& codec = task.state[k % task.rule->states].codec;
        if (!codec.codebook || codec.geometry->whole_blocks() != (k < task.rule->states)) continue;
        codec.block = state.shared.empty() ? codec.geometry->local_block(task.numel) : 0;
        if (codec.block > 0) {
            const std::int64_t both = std::lcm(least, codec.block);
            if (both <= kMaxLocal) {
                least = both;
            } else if (!codec.geometry->whole_blocks()) {
                codec.block = 0;
            } else {
                throw std::invalid_argument("blocks of a parameter's states do not line up");
            }
        }
        if (codec.block == 0 && !state.under_one()) task.two_passes = true;
    }
    task.stretch = std::max<std::int64_t>(1, kTile / least) * least;
}

// Store the scale of codes that were made under 1.
void finish_under_one(StateTask& state, std::int64_t numel, const Kernels& set) {
    Codec& codec = state.codec;
    std::vector<Ends> none;
    round_up_scales(codec, set, none, 1);
    if (std::isnan(*codec.fresh[0])) {  // all codes are those of NaN then
        const std::vector<float> any(static_cast<std::size_t>(numel));
        QuantizeTask task;
        task.codec = codec;
        task.codec.fresh[0] = codec.fresh[0];
        task.x = any.data();
        task.numel = numel;
        set.quantize_fresh(task, 0, numel, scratch());
    }
    commit_scales(codec, none);
    codec.fresh_memory = {};
}

// Sums of chunks, filled up with zeros, added as the elements of a chunk are.
double tree_sum(std::vector<double> x) {
    std::size_t size = 1;
    while (size < x.size()) size *= 2;
    x.resize(size);
    for (std::size_t half = size / 2; half > 0; half /= 2)
        for (std::size_t i = 0; i < half; ++i) x[i] += x[i + half];
    return x[0];
}

}  // namespace

Step::Step() : set_(kernels()) {}

void Step::add_parameter(const std::string& rule, const std::string& states,
                         const std::vector<std::int64_t>& shape, int p_dtype, int g_dtype) {
    ParamTask task;
    task.rule = find_rule(set_.rules, rule, states);
    task.numel = 1;
    for (const std::int64_t size : shape) task.numel *= size;
    if (task.rule->factoring != kNotFactored) arrange_factored(task, shape);
    task.p_dtype = static_cast<Dtype>(p_dtype);
    task.g_dtype = static_cast<Dtype>(g_dtype);
    tasks_.push_back(std::move(task));
    states_added_.push_back(0);
    arranged_ = false;
}

void Step::add_rounding(const NoiseKey& noise) {
    tasks_.back().p_stochastic = true;
    tasks_.back().p_noise = noise;
}

StateTask& Step::next_state() {
    ParamTask& task = tasks_.back();
    if (states_added_.back() >= task.rule->states)
        throw std::invalid_argument("a parameter has more states than its rule");
    return task.state[states_added_.back()++];
}

void Step::add_parameter_codes(Codec codec) { tasks_.back().p_codec = std::move(codec); }

void Step::add_gradient_codes(Codec codec) { tasks_.back().g_codec = std::move(codec); }

void Step::add_floats(float* data) { next_state().data = data; }

void Step::add_quantized(Codec codec) { next_state().codec = std::move(codec); }

void Step::add_shared_scales(std::vector<float*> scales) {
    StateTask& state = tasks_.back().state[states_added_.back() - 1];
    if (!state.codec.codebook || scales.size() != state.codec.geometry->parts.size())
        throw std::invalid_argument("shared scales need one list for each part of the state's scales");
    state.shared = std::move(scales);
}

void Step::add_factored_floats(float* data, std::int64_t size) {
    FactoredState state;
    state.data = data;
    state.size = size;
    tasks_.back().factored.state.push_back(std::move(state));
}

void Step::add_factored_quantized(Codec codec, std::int64_t size) {
    FactoredState state;
    state.codec = std::move(codec);
    state.size = size;
    tasks_.back().factored.state.push_back(std::move(state));
}

void Step::arrange() {
    items_.clear();
    for (std::size_t number = 0; number < tasks_.size(); ++number) {
        ParamTask& task = tasks_[number];
        if (states_added_[number] != task.rule->states)
            throw std::invalid_argument("a parameter has " + std::to_string(states_added_[number]) +
                                        " states; its rule has " +
                                        std::to_string(task.rule->states));
        choose_stretch(task);
        const std::int64_t chunk = std::max<std::int64_t>(1, kStepChunk / task.stretch) * task.stretch;
        for (std::int64_t begin = 0; begin < task.numel; begin += chunk)
            items_.push_back({static_cast<std::uint32_t>(number), begin,
                              std::min(task.numel, begin + chunk)});
    }
    arranged_ = true;
}

// The ratios of rules that take norms, which all that follows needs.
void Step::take_norms(int threads) {
    struct Norms {
        ParamTask* task;
        std::vector<double> sums[2];  // of the parameter's chunks, and of the measured ones
    };
    std::vector<Norms> norms;
    std::vector<std::pair<std::size_t, std::int64_t>> chunks;  // whose, and which
    for (ParamTask& task : tasks_) {
        if (!task.rule->settle) continue;
        const std::int64_t count = (task.numel + kNormChunk - 1) / kNormChunk;
        for (std::int64_t chunk = 0; chunk < count; ++chunk) chunks.emplace_back(norms.size(), chunk);
        const std::vector<double> sums(static_cast<std::size_t>(count));
        norms.push_back({&task, {sums, sums}});
    }
    // A thread takes neighbours, whose scales share cache lines.
    constexpr std::int64_t kTogether = 8;
    const auto all = static_cast<std::int64_t>(chunks.size());
    parallel((all + kTogether - 1) / kTogether, threads, [&](std::int64_t item, int) {
        for (std::int64_t i = item * kTogether; i < std::min(all, (item + 1) * kTogether); ++i) {
            const auto [whose, chunk] = chunks[static_cast<std::size_t>(i)];
            Norms& mine = norms[whose];
            double sums[2];
            set_.step_norms(*mine.task, chunk, sums, step_scratch());
            for (int which = 0; which < 2; ++which)
                mine.sums[which][static_cast<std::size_t>(chunk)] = sums[which];
        }
    });
    for (Norms& mine : norms) {
        ParamTask& task = *mine.task;
        const double p = tree_sum(std::move(mine.sums[0]));
        const double measured = tree_sum(std::move(mine.sums[1]));
        const auto count = static_cast<double>(std::max<std::int64_t>(task.numel, 1));
        task.rule->settle(p, measured, count, task.scalars);
    }
}

void Step::begin(int threads) {
    if (!arranged_) arrange();
    multi_block_.clear();
    multi_block_.resize(tasks_.size());
    bool any_multi_block = false;
    for (std::size_t number = 0; number < tasks_.size(); ++number) {
        ParamTask& task = tasks_[number];
        for (Codec* codec : {&task.p_codec, &task.g_codec})
            if (codec->codebook) prepare(*codec, set_, task.numel, true);
        for (int k = 0; k < task.rule->states; ++k) {
            StateTask& state = task.state[k];
            Codec& codec = state.codec;
            if (!codec.codebook) continue;
            const std::int64_t block = codec.block;
            prepare(codec, set_, task.numel, true);
            codec.block = block;
            if (block > 0) continue;
            if (state.under_one()) {
                reserve_fresh(codec);
                continue;
            }
            any_multi_block = true;
            auto& mine = multi_block_[number];
            if (!mine) mine = std::make_unique<MultiBlock>();
            if (state.shared.empty()) {
                reserve_fresh(codec);
            } else {
                take_fresh(codec, state.shared);
            }
            mine->maxima.emplace_back(codec, task.numel, threads);
            mine->ends.emplace_back();
            mine->state.push_back(k);
        }
    }
    take_factored(tasks_, set_, threads);
    take_norms(threads);
    if (any_multi_block) {
        parallel(static_cast<std::int64_t>(items_.size()), threads, [&](std::int64_t number, int thread) {
            const Item& item = items_[static_cast<std::size_t>(number)];
            MultiBlock* mine = multi_block_[item.parameter].get();
            if (!mine) return;
            float* const* slots[kMaxStates] = {};
            for (std::size_t w = 0; w < mine->state.size(); ++w)
                slots[mine->state[w]] = mine->maxima[w].of(thread);
            set_.step_maxima(tasks_[item.parameter], item.begin, item.end, slots, step_scratch());
        });
        // All threads share the scales of a large tensor; of the others each takes whole ones.
        const auto round_up = [&](bool large, std::size_t number, int team) {
            MultiBlock* mine = multi_block_[number].get();
            if (!mine || (tasks_[number].numel >= kLarge) != large) return;
            for (std::size_t w = 0; w < mine->state.size(); ++w) {
                mine->maxima[w].merge();
                StateTask& state = tasks_[number].state[mine->state[w]];
                // Scales that are 1 are exchanged as such.
                if (state.shared.empty() || state.codec.geometry->ones())
                    round_up_scales(state.codec, set_, mine->ends[w], team);
            }
        };
        for (std::size_t number = 0; number < tasks_.size(); ++number)
            round_up(true, number, threads);
        parallel(static_cast<std::int64_t>(tasks_.size()), threads, [&](std::int64_t number, int) {
            round_up(false, static_cast<std::size_t>(number), 1);
        });
    }
}

void Step::finish(int threads) {
    if (multi_block_.size() != tasks_.size())
        throw std::logic_error("a step is finished that was not begun");
    std::vector<std::unique_ptr<Slices>> slices(tasks_.size());
    for (std::size_t number = 0; number < tasks_.size(); ++number)
        if (tasks_[number].rule->factoring == kSmallest)
            slices[number] = std::make_unique<Slices>(tasks_[number], threads);
    parallel(static_cast<std::int64_t>(items_.size()), threads, [&](std::int64_t number, int thread) {
        const Item& item = items_[static_cast<std::size_t>(number)];
        const Slices* mine = slices[item.parameter].get();
        set_.step_range(tasks_[item.parameter], item.begin, item.end,
                        mine ? mine->of(thread) : nullptr, step_scratch());
    });
    for (const auto& mine : slices)
        if (mine) mine->store();
    store_factored(tasks_, threads);
    for (ParamTask& task : tasks_)
        for (int k = 0; k < task.rule->states; ++k)
            if (task.state[k].under_one()) finish_under_one(task.state[k], task.numel, set_);
    for (std::size_t number = 0; number < tasks_.size(); ++number) {
        const MultiBlock* mine = multi_block_[number].get();
        if (!mine) continue;
        for (std::size_t w = 0; w < mine->state.size(); ++w) {
            StateTask& state = tasks_[number].state[mine->state[w]];
            if (!state.shared.empty()) continue;
            commit_scales(state.codec, mine->ends[w]);
            state.codec.fresh_memory = {};
        }
    }
    multi_block_.clear();
}

}  // namespace qmaps
