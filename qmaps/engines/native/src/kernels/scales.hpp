// Reading and folding scales: which scale belongs to which element.

// Call run(first, count, index, step) for stretches of elements [at, at + count): the first of a
// stretch takes scale number `index`, and each after it the same (step 0) or the next (step 1).
template <class Run>
inline void in_runs(const PartView& part, std::int64_t at, std::int64_t count, const Run& run) {
    const bool each = part.divisor == 1;
    const std::int64_t length = each ? part.count : part.divisor;
    std::int64_t index = each ? at % part.count : at / part.divisor % part.count;
    std::int64_t rest = each ? part.count - index : part.divisor - at % part.divisor;
    for (std::int64_t i = 0; i < count;) {
        if (rest > count - i) rest = count - i;
        run(i, rest, index);
        i += rest;
        rest = length;
        index = each || index + 1 == part.count ? 0 : index + 1;
    }
}

// The part's scales at elements [at, at + count).
inline void part_scales(const PartView& part, std::int64_t at, std::int64_t count,
                        float* __restrict out) {
    in_runs(part, at, count, [&](std::int64_t i, std::int64_t some, std::int64_t index) {
        if (part.divisor > 1) {
            const float scale = part.codes ? part.grid[part.codes[index]] : part.values[index];
            for (std::int64_t j = 0; j < some; ++j) out[i + j] = scale;
        } else if (part.codes) {
            for (std::int64_t j = 0; j < some; ++j) out[i + j] = part.grid[part.codes[index + j]];
        } else {
            __builtin_memcpy(out + i, part.values + index, some * sizeof(float));
        }
    });
}

// The scale of each element: the minimum over the parts.
inline void element_scales(const ScaleView& view, std::int64_t at, std::int64_t count,
                           float* __restrict out) {
    part_scales(view.part[0], at, count, out);
    for (int p = 1; p < view.parts; ++p) {
        const PartView& part = view.part[p];
        in_runs(part, at, count, [&](std::int64_t i, std::int64_t some, std::int64_t index) {
            float* __restrict to = out + i;
            if (part.divisor > 1) {
                const float scale = part.codes ? part.grid[part.codes[index]] : part.values[index];
                for (std::int64_t j = 0; j < some; ++j) to[j] = smaller_scale(to[j], scale);
            } else if (part.codes) {
                for (std::int64_t j = 0; j < some; ++j)
                    to[j] = smaller_scale(to[j], part.grid[part.codes[index + j]]);
            } else {
                const float* scale = part.values + index;
                for (std::int64_t j = 0; j < some; ++j) to[j] = smaller_scale(to[j], scale[j]);
            }
        });
    }
}

// The largest magnitude as bits, by which NaN is above infinity.
inline std::uint32_t largest_bits(const float* x, std::int64_t count) {
    std::uint32_t most = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        const std::uint32_t magnitude = bits_of(x[i]) & 0x7FFFFFFFu;
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

inline bool any_negative(const float* x, std::int64_t count) {
    int found = 0;
    for (std::int64_t i = 0; i < count; ++i) found |= x[i] < 0.0f ? 1 : 0;
    return found != 0;
}

// Raise a shared maximum; magnitudes order as their bits do.
inline void raise_to(float* slot, std::uint32_t bits) {
    auto* shared = reinterpret_cast<std::uint32_t*>(slot);
    std::uint32_t seen = __atomic_load_n(shared, __ATOMIC_RELAXED);
    while (seen < bits && !__atomic_compare_exchange_n(shared, &seen, bits, true, __ATOMIC_RELAXED,
                                                       __ATOMIC_RELAXED)) {
    }
}

// Fold the magnitudes of elements [at, at + count) into the maxima of one part.
inline void fold_part(const Part& part, const float* x, std::int64_t at, std::int64_t count,
                      float* maxima) {
    std::int64_t i = 0;
    if (part.divisor == 1) {
        std::int64_t index = at % part.count;
        while (i < count) {
            const std::int64_t run = count - i < part.count - index ? count - i : part.count - index;
            auto* slots = reinterpret_cast<std::uint32_t*>(maxima + index);
            for (std::int64_t j = 0; j < run; ++j) {
                const std::uint32_t magnitude = bits_of(x[i + j]) & 0x7FFFFFFFu;
                slots[j] = magnitude > slots[j] ? magnitude : slots[j];
            }
            i += run;
            index = 0;
        }
        return;
    }
    std::int64_t index = at / part.divisor;
    std::int64_t run = part.divisor - at % part.divisor;
    if (index >= part.count) index %= part.count;
    while (i < count) {
        if (run > count - i) run = count - i;
        raise_to(maxima + index, largest_bits(x + i, run));
        i += run;
        run = part.divisor;
        if (++index == part.count) index = 0;
    }
}

// See qmaps.normalize.eight_bit: 0, then 255 scales on a log2 grid with exact ends.
inline void eight_bit_grid(float low, float high, float* grid) {
    grid[0] = 0.0f;
    if (bits_of(high) >= kInfinityBits) {
        for (int j = 1; j <= kGridSteps + 1; ++j) grid[j] = float_of(0x7FC00000u);
        return;
    }
    if (high == 0.0f) {
        for (int j = 1; j <= kGridSteps + 1; ++j) grid[j] = 0.0f;
        return;
    }
    const float low_log2 = log2_of(low);
    const float width = log2_of(high) - low_log2;
    float most = low;
    for (int j = 0; j <= kGridSteps; ++j) {
        const float scale = grid_scale(j, low, high, low_log2, width);
        most = scale > most ? scale : most;
        grid[j + 1] = most;
    }
}
