#include "step.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "parallel.hpp"

namespace qmaps {
namespace {

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
    // Ranges in log2 know no second way, so they choose first.
    for (int k = 0; k < 2 * task.rule->states; ++k) {
        Codec& codec = task.state[k % task.rule->states].codec;
        if (!codec.book || codec.geometry->log != (k < task.rule->states)) continue;
        codec.block = codec.geometry->local_block(task.numel);
        if (codec.block > 0) {
            const std::int64_t both = std::lcm(least, codec.block);
            if (both <= kMaxLocal) {
                least = both;
            } else if (!codec.geometry->log) {
                codec.block = 0;
            } else {
                throw std::invalid_argument("blocks of a parameter's states do not line up");
            }
        }
        if (codec.block == 0) task.two_passes = true;
    }
    task.stretch = std::max<std::int64_t>(1, kTile / least) * least;
}

}  // namespace

Step::Step() : set_(kernels()) {}

void Step::add_parameter(const std::string& rule, const std::string& states, std::int64_t numel,
                         int p_dtype, int g_dtype) {
    ParamTask task;
    task.rule = find_rule(set_.rules, rule, states);
    task.numel = numel;
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

void Step::add_floats(float* data) { next_state().data = data; }

void Step::add_quantized(Codec codec) { next_state().codec = std::move(codec); }

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

void Step::run(int threads) {
    if (!arranged_) arrange();

    // States whose scales span more than a block: their maxima come first.
    struct Wide {
        std::vector<PrivateMaxima> maxima;        // per wide state
        std::vector<std::vector<Ends>> ends;      // the same
        std::vector<int> state;                   // which state each is
    };
    std::vector<std::unique_ptr<Wide>> wide(tasks_.size());
    bool any_wide = false;
    for (std::size_t number = 0; number < tasks_.size(); ++number) {
        ParamTask& task = tasks_[number];
        for (int k = 0; k < task.rule->states; ++k) {
            Codec& codec = task.state[k].codec;
            if (!codec.book) continue;
            const std::int64_t block = codec.block;
            prepare(codec, set_, task.numel, true);
            codec.block = block;
            if (block > 0) continue;
            any_wide = true;
            if (!wide[number]) wide[number] = std::make_unique<Wide>();
            reserve_fresh(codec);
            wide[number]->maxima.emplace_back(codec, task.numel, threads);
            wide[number]->ends.emplace_back();
            wide[number]->state.push_back(k);
        }
    }
    const auto items = static_cast<std::int64_t>(items_.size());
    if (any_wide) {
        parallel(items, threads, [&](std::int64_t number, int thread) {
            const Item& item = items_[static_cast<std::size_t>(number)];
            Wide* mine = wide[item.parameter].get();
            if (!mine) return;
            float* const* slots[kMaxStates] = {};
            for (std::size_t w = 0; w < mine->state.size(); ++w)
                slots[mine->state[w]] = mine->maxima[w].of(thread);
            set_.step_maxima(tasks_[item.parameter], item.begin, item.end, slots, step_scratch());
        });
        parallel(static_cast<std::int64_t>(tasks_.size()), threads, [&](std::int64_t number, int) {
            Wide* mine = wide[static_cast<std::size_t>(number)].get();
            if (!mine) return;
            for (std::size_t w = 0; w < mine->state.size(); ++w) {
                mine->maxima[w].merge();
                round_up_scales(tasks_[static_cast<std::size_t>(number)].state[mine->state[w]].codec,
                                set_, mine->ends[w]);
            }
        });
    }
    parallel(items, threads, [&](std::int64_t number, int) {
        const Item& item = items_[static_cast<std::size_t>(number)];
        set_.step_range(tasks_[item.parameter], item.begin, item.end, step_scratch());
    });
    for (std::size_t number = 0; number < tasks_.size(); ++number) {
        if (!wide[number]) continue;
        for (std::size_t w = 0; w < wide[number]->state.size(); ++w) {
            Codec& codec = tasks_[number].state[wide[number]->state[w]].codec;
            commit_scales(codec, set_, wide[number]->ends[w]);
            codec.fresh_memory = {};
        }
    }
}

}  // namespace qmaps
