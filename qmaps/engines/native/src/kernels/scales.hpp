// Reading and folding scales: which scale belongs to which element.

inline constexpr std::uint32_t kSignBit = 0x80000000u;

// Whether each element takes another scale than the one before it.
template <class P>
inline bool goes_on(const P& part) { return part.divisor == 1 && part.count > 1; }

// Call run(first, count, index) for stretches of elements [at, at + count) in which no part takes
// another scale but those that go on: the first element of a stretch takes scale number index[p]
// of part p.
template <class P, class Run>
inline void in_stretches(const P* part, int parts, std::int64_t at, std::int64_t count,
                         const Run& run) {
    std::int64_t index[kMaxParts], rest[kMaxParts];
    for (int p = 0; p < parts; ++p) {
        index[p] = at / part[p].divisor % part[p].count;
        rest[p] = part[p].count == 1  ? count
                  : goes_on(part[p]) ? part[p].count - index[p]
                                     : part[p].divisor - at % part[p].divisor;
    }
    for (std::int64_t i = 0; i < count;) {
        std::int64_t some = count - i;
        for (int p = 0; p < parts; ++p)
            if (rest[p] < some) some = rest[p];
        run(i, some, index);
        i += some;
        for (int p = 0; p < parts; ++p) {
            const bool per_element = goes_on(part[p]);
            rest[p] -= some;
            index[p] += per_element ? some : rest[p] == 0 ? 1 : 0;
            if (rest[p] > 0) continue;
            if (index[p] == part[p].count) index[p] = 0;
            rest[p] = per_element ? part[p].count : part[p].divisor;
        }
    }
}

inline float scale_at(const PartView& part, std::int64_t index) {
    return part.codes ? part.grid[part.codes[index]] : part.values[index];
}

// The part's scales at elements [at, at + count).
inline void part_scales(const PartView& part, std::int64_t at, std::int64_t count,
                        float* __restrict out) {
    in_stretches(&part, 1, at, count,
                 [&](std::int64_t i, std::int64_t some, const std::int64_t* index) ALWAYS_INLINE {
        if (!goes_on(part)) {
            const float scale = scale_at(part, *index);
            for (std::int64_t j = 0; j < some; ++j) out[i + j] = scale;
        } else {
            __builtin_memcpy(out + i, part.values + *index, some * sizeof(float));
        }
    });
}

// smaller_scale where `all` is not NaN, which processors have an instruction for.
inline float smaller_of(float all, float scale) { return all < scale ? all : scale; }

// Call run(first, count, all, scales) for stretches of elements [at, at + count): the scale of
// element j, the minimum over the parts, is `all`, or, unless `scales` is null, smaller_of(all,
// scales[j]). So it is formed in a register, where it is used. Where several parts go on, `count`
// is at most a tile.
template <class Run>
inline void in_scales(const ScaleView& view, std::int64_t at, std::int64_t count, const Run& run) {
    float more[kTile];  // where several parts go on
    in_stretches(view.part, view.parts, at, count,
                 [&](std::int64_t i, std::int64_t some, const std::int64_t* index) ALWAYS_INLINE {
        float all = float_of(kInfinityBits);
        const float* scales = nullptr;
        for (int p = 0; p < view.parts; ++p) {
            const PartView& part = view.part[p];
            if (!goes_on(part)) {
                all = smaller_scale(all, scale_at(part, index[p]));
            } else if (!scales) {
                scales = part.values + index[p];
            } else {
                const float* scale = part.values + index[p];
                for (std::int64_t j = 0; j < some; ++j)
                    more[j] = smaller_scale(scales[j], scale[j]);
                scales = more;
            }
        }
        run(i, some, all, is_nan(all) ? nullptr : scales);
    });
}

// The scale of each element.
inline void element_scales(const ScaleView& view, std::int64_t at, std::int64_t count, float* out) {
    in_scales(view, at, count,
              [&](std::int64_t i, std::int64_t some, float all, const float* scales) ALWAYS_INLINE {
        float* __restrict to = out + i;
        for (std::int64_t j = 0; j < some; ++j) to[j] = scales ? smaller_of(all, scales[j]) : all;
    });
}

// Multiply values by their scales.
inline void multiply(const ScaleView& view, std::int64_t at, std::int64_t count, float* values) {
    in_scales(view, at, count,
              [&](std::int64_t i, std::int64_t some, float all, const float* scales) ALWAYS_INLINE {
        float* __restrict to = values + i;
        if (scales) {
            for (std::int64_t j = 0; j < some; ++j) to[j] = to[j] * smaller_of(all, scales[j]);
        } else {
            for (std::int64_t j = 0; j < some; ++j) to[j] = to[j] * all;
        }
    });
}

// The largest magnitude as bits, by which NaN is above infinity.
inline std::uint32_t largest_bits(const float* x, std::int64_t count) {
    std::uint32_t most = 0;
    QMAPS_SIDE_BY_SIDE(4)
    for (std::int64_t i = 0; i < count; ++i) {
        const std::uint32_t magnitude = bits_of(x[i]) & 0x7FFFFFFFu;
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

// The largest bits: the largest magnitude where no element has a sign, else at least kSignBit. It
// takes half the work of `largest_bits`.
inline std::uint32_t highest_bits(const float* x, std::int64_t count) {
    std::uint32_t most = 0;
    QMAPS_SIDE_BY_SIDE(4)
    for (std::int64_t i = 0; i < count; ++i) most = bits_of(x[i]) > most ? bits_of(x[i]) : most;
    return most;
}

// Raise a shared maximum; magnitudes order as their bits do.
inline void raise_to(float* slot, std::uint32_t bits) {
    auto* shared = reinterpret_cast<std::uint32_t*>(slot);
    std::uint32_t seen = __atomic_load_n(shared, __ATOMIC_RELAXED);
    while (seen < bits && !__atomic_compare_exchange_n(shared, &seen, bits, true, __ATOMIC_RELAXED,
                                                       __ATOMIC_RELAXED)) {
    }
}

// Raise maxima side by side to the magnitudes of as many elements, and return the largest of these.
inline std::uint32_t raise_each(float* maxima, const float* __restrict x, std::int64_t count) {
    auto* __restrict slots = reinterpret_cast<std::uint32_t*>(maxima);
    std::uint32_t most = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        const std::uint32_t magnitude = bits_of(x[i]) & 0x7FFFFFFFu;
        most = magnitude > most ? magnitude : most;
        slots[i] = magnitude > slots[i] ? magnitude : slots[i];
    }
    return most;
}

// Fold the magnitudes of elements [at, at + count) into the maxima of each part.
inline void fold_parts(const Geometry& geometry, const float* x, std::int64_t at,
                       std::int64_t count, float* const* maxima) {
    const Part* part = geometry.parts.data();
    const int parts = static_cast<int>(geometry.parts.size());
    in_stretches(part, parts, at, count,
                 [&](std::int64_t i, std::int64_t some, const std::int64_t* index) ALWAYS_INLINE {
        std::uint32_t most = 0;
        bool known = false;
        for (int p = 0; p < parts; ++p) {
            if (!goes_on(part[p])) continue;
            most = raise_each(maxima[p] + index[p], x + i, some);
            known = true;
        }
        if (!known) most = largest_bits(x + i, some);
        for (int p = 0; p < parts; ++p)
            if (!goes_on(part[p])) raise_to(maxima[p] + index[p], most);
    });
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

// Raise scales to their grid, of which they take these codes. Searches go side by side: one by
// itself waits for each of its loads.
static void raise_to_grid(const float* __restrict grid, float* __restrict scales,
                          std::int64_t count, std::uint8_t* __restrict codes) {
    constexpr int kSide = 16;
    // Under a grid of NaN, as the reference has it, all but zero take the last code.
    const int least = bits_of(grid[kGridSteps + 1]) < kInfinityBits ? 0 : kGridSteps;
    for (std::int64_t i = 0; i < count; i += kSide) {
        const int some = count - i < kSide ? static_cast<int>(count - i) : kSide;
        float scale[kSide] = {};
        for (int j = 0; j < some; ++j) scale[j] = scales[i + j];
        int code[kSide] = {};  // how many scales of the grid, but for its 0, lie below
        for (int half = 128; half > 0; half /= 2)
            for (int j = 0; j < kSide; ++j)
                code[j] += scale[j] > grid[code[j] + half] ? half : 0;
        for (int j = 0; j < kSide; ++j) {
            const int below = code[j] > least ? code[j] : least;
            code[j] = scale[j] == 0.0f ? 0 : 1 + (below < kGridSteps ? below : kGridSteps);
        }
        for (int j = 0; j < some; ++j) {
            codes[i + j] = static_cast<std::uint8_t>(code[j]);
            scales[i + j] = grid[code[j]];
        }
    }
}

static void scale_grid(int kind, const float* ends, float* grid) {
    if (kind != kScaleE4m3) {
        eight_bit_grid(ends[0], ends[1], grid);
        return;
    }
    for (std::uint32_t code = 0; code < 256; ++code) grid[code] = scale_of_e4m3(code, ends[0]);
}

static void onto_grid(int kind, const float* ends, const float* grid, float* scales,
                      std::int64_t count, std::uint8_t* codes) {
    if (kind != kScaleE4m3) {
        raise_to_grid(grid, scales, count, codes);
        return;
    }
    for (std::int64_t i = 0; i < count; ++i) {
        codes[i] = scale_to_e4m3(scales[i], ends[0]);
        scales[i] = grid[codes[i]];
    }
}

static void widen_scales(int kind, const void* stored, std::int64_t count, float* scales) {
    if (kind == kScaleOne) {
        __builtin_memcpy(scales, stored, count * sizeof(float));
        return;
    }
    if (kind == kScaleBfloat16) {  // a loop of its own is vectorized
        const auto* halves = static_cast<const std::uint16_t*>(stored);
        for (std::int64_t i = 0; i < count; ++i) scales[i] = from_bf16(halves[i]);
        return;
    }
    for (std::int64_t i = 0; i < count; ++i) scales[i] = stored_scale(kind, stored, i);
}

static void round_scales(int kind, float* scales, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i)
        scales[i] = kind == kScaleOne ? one_of(scales[i])
                                      : scale_of_bits(kind, scale_bits(kind, scales[i]));
}

// Of scales that round_scales rounded.
static void store_scales(int kind, const float* scales, std::int64_t count, void* stored) {
    if (kind == kScaleOne) {
        __builtin_memcpy(stored, scales, count * sizeof(float));
        return;
    }
    for (std::int64_t i = 0; i < count; ++i)
        put_scale_bits(kind, exact_scale_bits(kind, scales[i]), stored, i);
}
