// One optimizer step over a range of one parameter.

// Where the next stretch lies; nothing where it needs no asking for.
inline Lines next_of(const void* data, Dtype dtype, const ParamTask& task, std::int64_t at,
                     std::int64_t stretch) {
    if (!data || at + stretch >= task.numel) return {};
    return lines_of(data, dtype, at + stretch, stretch);
}

inline void ask_after(const void* data, Dtype dtype, std::int64_t at) {
    if (data) __builtin_prefetch(lines_of(data, dtype, at, 0).at, 0, 2);
}

inline void store_stochastic(const float* from, std::uint16_t* to, const NoiseKey& noise,
                             std::int64_t at, std::int64_t count, Scratch& scratch) {
    for (std::int64_t i = 0; i < count; i += kTile) {
        const std::int64_t some = count - i < kTile ? count - i : kTile;
        const std::uint16_t* draws = draws_of(noise, at + i, some, scratch);
        for (std::int64_t j = 0; j < some; ++j)
            to[at + i + j] = to_bf16_stochastic(from[i + j], draws[j]);
    }
}

// Parameter or gradient as floats: where they are, or decoded into `memory`.
inline const float* read_from(const Codec& codec, const void* data, Dtype dtype, std::int64_t at,
                              std::int64_t count, float* memory, Scratch& scratch) {
    if (!codec.codebook) return floats(data, dtype, at, count, memory);
    decode_range(codec, stored(codec), at, count, memory, scratch);
    return memory;
}

// A parameter with remainders.
inline void load_split(const ParamTask& task, std::int64_t at, std::int64_t count, float* to) {
    const std::uint16_t* half = static_cast<const std::uint16_t*>(task.p) + at;
    if (task.remainder_bytes == 1)
        load_joined(half, static_cast<const std::int8_t*>(task.remainder) + at, count, to);
    else
        load_joined(half, static_cast<const std::int16_t*>(task.remainder) + at, count, to);
}

inline void store_split(const ParamTask& task, const float* from, std::int64_t at,
                        std::int64_t count) {
    std::uint16_t* half = static_cast<std::uint16_t*>(task.p) + at;
    if (task.remainder_bytes == 1)
        store_split(from, count, half, static_cast<std::int8_t*>(task.remainder) + at);
    else
        store_split(from, count, half, static_cast<std::int16_t*>(task.remainder) + at);
}

// The values of the parameter: where they are, or in `memory`.
inline const float* read_parameter(const ParamTask& task, std::int64_t at, std::int64_t count,
                                   float* memory, Scratch& scratch) {
    if (!task.remainder)
        return read_from(task.p_codec, task.p, task.p_dtype, at, count, memory, scratch);
    load_split(task, at, count, memory);
    return memory;
}

static void step_range(const ParamTask& task, std::int64_t begin, std::int64_t end,
                       float* const* slices, StepScratch& memory) {
    const bool sided = task.rule->factoring != kNotFactored;
    ScaleView views[kMaxStates];
    int quantized = 0;
    for (int k = 0; k < task.rule->states; ++k)
        if (task.state[k].codec.codebook) {
            views[k] = stored(task.state[k].codec);
            ++quantized;
        }
    for (std::int64_t at = begin; at < end; at += task.stretch) {
        const std::int64_t count = end - at < task.stretch ? end - at : task.stretch;
        // Meanwhile the next gradients and parameters come in. A rule takes two turns.
        memory.scratch.ahead =
            ahead_of(next_of(task.g, task.g_dtype, task, at, task.stretch),
                     next_of(task.p, task.p_dtype, task, at, task.stretch), task.stretch,
                     2 + quantized);
        // One line of the stretch after that: its page is then known by the time.
        ask_after(task.g, task.g_dtype, at + 2 * task.stretch);
        ask_after(task.p, task.p_dtype, at + 2 * task.stretch);
        float* states[kMaxStates] = {};
        for (int k = 0; k < task.rule->states; ++k) {
            const StateTask& state = task.state[k];
            states[k] = state.codec.codebook ? memory.state[k] : state.data + at;
            if (state.codec.codebook)
                decode_range(state.codec, views[k], at, count, states[k], memory.scratch);
        }
        if (sided) {
            states[task.rule->states] = memory.state[task.rule->states];
            factored_values(task, at, count, memory.state[task.rule->states]);
        }
        const float* g =
            read_from(task.g_codec, task.g, task.g_dtype, at, count, memory.g, memory.scratch);
        float* p = memory.p;
        if (task.p_codec.codebook) {
            decode_range(task.p_codec, stored(task.p_codec), at, count, p, memory.scratch);
        } else if (task.p_dtype == Dtype::kFloat32) {
            p = static_cast<float*>(task.p) + at;
        } else if (task.remainder) {
            load_split(task, at, count, p);
        } else {
            load(task.p, task.p_dtype, at, count, p);
        }
        task.rule->apply(p, g, states, count, task.scalars, memory.scratch.ahead);
        if (task.p_codec.codebook) {
            encode_blocks(task.p_codec, p, at, count, memory.scratch);
        } else if (task.remainder) {
            store_split(task, p, at, count);
        } else if (task.p_dtype == Dtype::kBfloat16 && task.p_stochastic) {
            store_stochastic(p, static_cast<std::uint16_t*>(task.p), task.p_noise, at, count,
                             memory.scratch);
        } else if (task.p_dtype != Dtype::kFloat32) {
            store(p, task.p, task.p_dtype, at, count);
        }
        if (task.rounded) store(p, task.rounded, Dtype::kBfloat16, at, count);
        for (int k = 0; k < task.rule->states; ++k) {
            const StateTask& state = task.state[k];
            if (state.codec.codebook) encode_range(state, states[k], at, count, memory.scratch);
        }
        if (slices)
            fold_parts(task.factored.slices, states[task.rule->states], at, count, slices);
    }
}

// Fold the new values of states whose scales span more than a block.
static void step_maxima(const ParamTask& task, std::int64_t begin, std::int64_t end,
                        float* const* const* slots, StepScratch& memory) {
    unsigned wanted = 0;
    for (int k = 0; k < task.rule->states; ++k)
        if (task.state[k].codec.codebook && task.state[k].codec.block == 0 &&
            !task.state[k].under_one())
            wanted |= 1u << k;
    const unsigned read = task.rule->reads(wanted);
    for (std::int64_t at = begin; at < end; at += kTile) {
        const std::int64_t count = end - at < kTile ? end - at : kTile;
        float* states[kMaxStates] = {};
        for (int k = 0; k < task.rule->states; ++k) {
            if (!(read >> k & 1u)) continue;
            const StateTask& state = task.state[k];
            states[k] = memory.state[k];
            if (state.codec.codebook) {
                decode_tile(state.codec, stored(state.codec), at, count, states[k],
                            memory.scratch);
            } else {
                __builtin_memcpy(states[k], state.data + at, count * sizeof(float));
            }
        }
        if (task.rule->factoring != kNotFactored) {
            states[task.rule->states] = memory.state[task.rule->states];
            factored_values(task, at, count, memory.state[task.rule->states]);
        }
        const float* g =
            read_from(task.g_codec, task.g, task.g_dtype, at, count, memory.g, memory.scratch);
        const float* p = read_parameter(task, at, count, memory.p, memory.scratch);
        memory.scratch.ahead =
            ahead_of(next_of(task.g, task.g_dtype, task, at, kTile), {}, kTile, 2);
        task.rule->advance(p, g, states, count, task.scalars, wanted, memory.scratch.ahead);
        for (int k = 0; k < task.rule->states; ++k) {
            if (!(wanted >> k & 1u)) continue;
            fold_parts(*task.state[k].codec.geometry, states[k], at, count, slots[k]);
        }
    }
}

// The first half to the second, until one number is left; see qmaps.optim.norms.
inline double added(double* x, std::int64_t count) {
    for (std::int64_t half = count / 2; half > 0; half /= 2)
        for (std::int64_t i = 0; i < half; ++i) x[i] += x[i + half];
    return x[0];
}

// Squares of a tile, stored or added.
inline void add_squares(const float* from, std::int64_t count, bool adds, double* __restrict to,
                        Ahead& ahead) {
    for (std::int64_t i = 0; i < count; i += 64) {
        ask(ahead, ahead.unit);
        const std::int64_t end = count - i < 64 ? count : i + 64;
        for (std::int64_t j = i; j < end; ++j) {
            const double x = from[j];
            to[j] = adds ? to[j] + x * x : x * x;
        }
    }
}

static void step_norms(const ParamTask& task, std::int64_t chunk, double* sums,
                       StepScratch& memory) {
    constexpr std::int64_t kHalf = kNormChunk / 2;
    static_assert(kHalf % kTile == 0);
    const std::int64_t begin = chunk * kNormChunk;
    const std::int64_t end = task.numel - begin < kNormChunk ? task.numel : begin + kNormChunk;
    const unsigned read = task.rule->measures(task.scalars);
    for (std::int64_t at = begin; at < end; at += kTile) {
        const std::int64_t count = end - at < kTile ? end - at : kTile;
        float* states[kMaxStates] = {};
        for (int k = 0; k < task.rule->states; ++k) {
            if (!(read >> k & 1u)) continue;
            const StateTask& state = task.state[k];
            states[k] = state.codec.codebook ? memory.state[k] : state.data + at;
            if (state.codec.codebook)
                decode_tile(state.codec, stored(state.codec), at, count, states[k],
                            memory.scratch);
        }
        if (task.rule->factoring != kNotFactored) {
            states[task.rule->states] = memory.state[task.rule->states];
            factored_values(task, at, count, memory.state[task.rule->states]);
        }
        const float* g =
            read_from(task.g_codec, task.g, task.g_dtype, at, count, memory.g, memory.scratch);
        const float* p = read_parameter(task, at, count, memory.p, memory.scratch);
        float* measured = memory.scratch.x;
        task.rule->measured(p, g, states, count, task.scalars, measured);
        Ahead ahead = ahead_of(next_of(task.g, task.g_dtype, task, at, kTile),
                               next_of(task.p, task.p_dtype, task, at, kTile), kTile, 2);
        // The second half of the chunk is added to the first at once.
        const std::int64_t offset = at - begin, to = offset % kHalf;
        add_squares(p, count, offset >= kHalf, memory.squares[0] + to, ahead);
        add_squares(measured, count, offset >= kHalf, memory.squares[1] + to, ahead);
    }
    for (int which = 0; which < 2; ++which) {
        for (std::int64_t i = end - begin; i < kHalf; ++i) memory.squares[which][i] = 0;
        sums[which] = added(memory.squares[which], kHalf);
    }
}
