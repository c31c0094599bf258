// Encoding and decoding eight elements of a thread.
#pragma once

#include "block.cuh"
#include "codebook.cuh"
#include "memory.cuh"
#include "quick.cuh"
#include "wide_codebook.cuh"

namespace qmaps {

struct Division {
    std::int64_t quotient, rest;
};

// Of numbers that are not negative; long divisions are dear.
QMAPS_INLINE Division divide(std::int64_t a, std::int64_t b) {
    if (static_cast<std::uint64_t>(a | b) >> 32 == 0) {
        const auto short_a = static_cast<std::uint32_t>(a), short_b = static_cast<std::uint32_t>(b);
        return {short_a / short_b, short_a % short_b};
    }
    return {a / b, a % b};
}

// Call run(j, index) for `count` elements from `at` on, `index` the number of element j's scale.
template <class Run>
QMAPS_INLINE void in_part(const Part& part, std::int64_t at, int count, const Run& run) {
    if (part.divisor == 1) {
        std::int64_t index = divide(at, part.count).rest;
        for (int j = 0; j < kUnit; ++j) {
            if (j < count) run(j, index);
            index = index + 1 == part.count ? 0 : index + 1;
        }
        return;
    }
    const Division block = divide(at, part.divisor);
    std::int64_t index = divide(block.quotient, part.count).rest;
    std::int64_t left = part.divisor - block.rest;
    for (int j = 0; j < kUnit; ++j) {
        if (j < count) run(j, index);
        if (--left == 0) {
            left = part.divisor;
            index = index + 1 == part.count ? 0 : index + 1;
        }
    }
}

QMAPS_INLINE float stored_scale(const Part& part, std::int64_t index) {
    if (part.values) return part.values[index];
    if (part.codes) return part.grid[part.codes[index]];
    return stored_scale(static_cast<int>(part.kind), part.stored, index);
}

// The scales of eight elements, as stored or as about to be.
template <bool kFresh>
QMAPS_INLINE void unit_scales(const Scales& scales, std::int64_t at, int count, float* scale) {
    for (int p = 0; p < static_cast<int>(scales.parts); ++p) {
        const Part& part = scales.part[p];
        in_part(part, at, count, [&](int j, std::int64_t index) {
            const float one = kFresh ? part.fresh[index] : stored_scale(part, index);
            scale[j] = p == 0 ? one : smaller_scale(scale[j], one);
        });
    }
}

// The ends of the log2 ranges of eight elements, as stored or as about to be.
template <bool kFresh>
QMAPS_INLINE void unit_ends(const Scales& scales, std::int64_t at, int count, float* low,
                            float* high) {
    const Part *lower = scales.part, *upper = scales.part + 1;
    in_part(*lower, at, count, [&](int j, std::int64_t index) {
        low[j] = kFresh ? lower->fresh[index] : lower->values[index];
        high[j] = kFresh ? upper->fresh[index] : upper->values[index];
    });
}

// The random bits of eight elements, 16 each, two elements to a word.
QMAPS_INLINE Words<4> philox_block(const Noise& noise, std::uint64_t number) {
    auto c0 = static_cast<std::uint32_t>(number);
    auto c1 = static_cast<std::uint32_t>(number >> 32) | noise.word1;
    std::uint32_t c2 = noise.word2, c3 = noise.word3;
    std::uint32_t k0 = noise.key0, k1 = noise.key1;
    for (int round = 0; round < kPhiloxRounds; ++round, k0 += kWeyl0, k1 += kWeyl1)
        philox_round(c0, c1, c2, c3, k0, k1);
    return {{c0, c1, c2, c3}};
}

// The same from element `first` on, where a shard begins within a block.
QMAPS_RARE Words<4> parted_block(const Noise& noise, std::uint64_t first) {
    const Words<4> low = philox_block(noise, first / 8), high = philox_block(noise, first / 8 + 1);
    std::uint32_t words[kUnit];
    for (int k = 0; k < 4; ++k) {
        words[k] = low.word[k];
        words[k + 4] = high.word[k];
    }
    // Registers have no addresses: every place is known to the compiler.
    for (int one = 0; one < static_cast<int>(first % 8); ++one) {
        for (int k = 0; k < kUnit - 1; ++k) words[k] = words[k] >> 16 | words[k + 1] << 16;
        words[kUnit - 1] >>= 16;
    }
    return {{words[0], words[1], words[2], words[3]}};
}

// The random bits of eight elements from element `first` on.
QMAPS_INLINE Words<4> unit_draws(const Noise& noise, std::uint64_t first) {
    if (noise.key1 & kSpread) {
        Words<4> words;
        std::uint32_t word = spread_word(noise.word2, noise.word3, static_cast<std::uint32_t>(first));
        for (int k = 0; k < 4; ++k, word += 2 * kPerElement)
            words.word[k] = word >> 16 | ((word + kPerElement) & 0xFFFF0000u);
        return words;
    }
    if (first % 8 != 0) return parted_block(noise, first);
    return philox_block(noise, first / 8);
}

QMAPS_INLINE std::uint32_t draw_of(const Words<4>& draws, int j) {
    return draws.word[j / 2] >> (16 * (j % 2)) & 0xFFFFu;
}

// What a stored exponent stands for; a state begins with 0, as under 1.
QMAPS_INLINE float exponent_of(std::int32_t sixteenths) {
    return static_cast<float>(sixteenths < 1 ? 1 : sixteenths) * 0.0625f;
}

// The block of an element; shorter than a division of numbers with a sign.
template <class F>
QMAPS_INLINE std::int64_t block_of(std::int64_t at) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(at) / F::kBlock);
}

// The values of codes. Every thread of the warp calls it.
template <class F, class Book>
QMAPS_INLINE void values_of(const Book& codebook, const Codes<F::kBits>& codes, float* value) {
    if constexpr (F::kBits == 4) {
        for (int j = 0; j < kUnit; ++j)
            value[j] = looked_up<F>(codebook.shared.value, static_cast<int>(codes.word >> (4 * j)));
    } else {
        for (int j = 0; j < kUnit; ++j) value[j] = value_of(codebook, code_at(codes, j));
    }
}

// What each code stands for. Every thread of the warp calls it.
template <class F, class Book>
QMAPS_INLINE void decode_unit(const Book& codebook, const Scales& scales,
                              const Codes<F::kBits>& codes, std::int64_t at, int count, float* x) {
    float value[kUnit];
    values_of<F>(codebook, codes, value);
    if constexpr (F::kBlock > 0) {
        const std::int64_t block = count > 0 ? block_of<F>(at) : 0;
        float first = 0.0f;
        if (count > 0)
            first = F::kInFormat ? stored_scale(scales.part[0], block)
                                 : scales.part[0].values[block];
        if constexpr (F::kLog) {
            const float second = count > 0 ? scales.part[1].values[block] : 0.0f;
            for (int j = 0; j < kUnit; ++j) x[j] = log_value(value[j], first, second);
        } else if constexpr (F::kScaling == kPowers) {
            const auto* sixteenths = static_cast<const std::uint8_t*>(scales.part[1].stored);
            const float exponent = exponent_of(count > 0 ? sixteenths[block] : 1);
            for (int j = 0; j < kUnit; ++j) x[j] = unexpanded(value[j], first, exponent);
        } else {
            for (int j = 0; j < kUnit; ++j) x[j] = value[j] * first;
        }
    } else if constexpr (F::kLog) {
        float low[kUnit] = {}, high[kUnit] = {};
        unit_ends<false>(scales, at, count, low, high);
        for (int j = 0; j < kUnit; ++j) x[j] = log_value(value[j], low[j], high[j]);
    } else {
        float scale[kUnit] = {};
        unit_scales<false>(scales, at, count, scale);
        for (int j = 0; j < kUnit; ++j) x[j] = value[j] * scale[j];
    }
}

// What eight elements are encoded under: a scale each, or where blocks are coded at once, the scale
// or the ends of the log2 range of their block, or its scale and its exponent.
struct UnitScales {
    float first, second;
    float each[kUnit];
    float high[kUnit];  // upper ends, where those in `each` are the lower ones
};

template <class F>
QMAPS_INLINE float low_of(const UnitScales& under, int j) {
    return F::kBlock > 0 ? under.first : under.each[j];
}

template <class F>
QMAPS_INLINE float high_of(const UnitScales& under, int j) {
    return F::kBlock > 0 ? under.second : under.high[j];
}

// What a value of the codebook stands for.
template <class F>
QMAPS_INLINE float value_under(float value, const UnitScales& under, int j) {
    if constexpr (F::kLog) return log_value(value, low_of<F>(under, j), high_of<F>(under, j));
    if constexpr (F::kScaling == kPowers) return unexpanded(value, under.first, under.second);
    return value * low_of<F>(under, j);
}

// The lowest code of each value, where some values have several.
template <class Book, class Codes>
QMAPS_INLINE Codes lowest_codes(const Book& codebook, const Codes& codes) {
    Codes lowest = {};
#pragma unroll 1
    for (int j = 0; j < kUnit; ++j) {
        int code = code_at(codes, j);
        while (code > 0 && value_of(codebook, code - 1) == value_of(codebook, code)) --code;
        put_code(lowest, j, code);
    }
    return lowest;
}

// Codes of positions n in the codebook, of the elements x.
template <class F, class Book>
QMAPS_INLINE Codes<F::kBits> round_unit(const Book& codebook, const Noise& noise, std::int64_t at,
                                        int count, const float* n, const float* x,
                                        const UnitScales& under) {
    Codes<F::kBits> codes = {};
    Words<4> draws = {};
    if constexpr (F::kStochastic)
        draws = unit_draws(noise, static_cast<std::uint64_t>(noise.offset + at));
    const Codebook& numbers = numbers_of(codebook);
    const std::uint32_t mirror = mirror_of(noise.key1);
    for (int j = 0; j < kUnit; ++j) {
        int code = search_code<F>(codebook, n[j]);
        if constexpr (F::kStochastic && F::kInShared && !F::kLog && F::kScaling != kPowers) {
            const Gap gap = codebook.shared.gap[code];
            const float over = n[j] - gap.low, bent = over * numbers.bend;
            const std::uint32_t draw = draw_of(draws, j) ^ (n[j] < 0.0f ? mirror : 0u);
            code += exceeds(over + bent, uniform_of(draw) * (gap.size + bent));
        } else if constexpr (F::kStochastic) {
            const int last = static_cast<int>(numbers.size) - 1, above = code < last ? code + 1 : last;
            float low = value_of(codebook, code), high = value_of(codebook, above);
            const bool in_value = (F::kLog || F::kScaling == kPowers) && !numbers.in_log;
            if (in_value) {
                low = value_under<F>(low, under, j);
                high = value_under<F>(high, under, j);
            }
            const float value = in_value ? x[j] : n[j];
            code = rounds_up(draw_of(draws, j), mirror, value, low, high, numbers.bend) ? above : code;
        }
        put_code(codes, j, code);
    }
    // Cells part all limits.
    if (F::kStochastic && F::kSteps != kCells && numbers.ties) codes = lowest_codes(codebook, codes);
    keep_first(codes, count);
    return codes;
}

// Elements under the scale of their block, of which they are at most a few times unless kScaling
// can make it smaller.
template <class F>
QMAPS_INLINE void normalize_unit(const float* x, float scale, float* n) {
    const Magnitudes magnitudes(x);
    const bool near = F::kScaling == kMaxima || float_of(magnitudes.most) <= 1024.0f * scale;
    if (magnitudes.least >= bits_of(kSmall) && scale >= kSmall && scale <= kLarge && near) {
        const QuickDivisor divisor(scale);
        for (int j = 0; j < kUnit; ++j) n[j] = divisor.under(x[j]);
    } else {
        float each[kUnit];
        for (int j = 0; j < kUnit; ++j) each[j] = x[j];
#pragma unroll 1
        for (int j = 0; j < kUnit; ++j) each[j] = normalized(each[j], scale);
        // What NaN became is more than 1.
        for (int j = 0; j < kUnit; ++j) n[j] = F::kSteps == kCells && each[j] > 1.0f ? 1.0f : each[j];
    }
}

// The scale, or the two ends of the log2 range, of the block that a thread's eight elements belong
// to. Every thread of the block of threads calls it. Elements that are not there are zero.
template <class F>
QMAPS_INLINE void block_scales(const Scales& scales, const float* x, int count,
                               std::uint32_t* shared, float& first, float& second) {
    constexpr int kLanes = F::kBlock / kUnit;
    if constexpr (F::kLog) {
        LogEnds ends;
        for (int j = 0; j < kUnit; ++j)
            if (j < count) widen_ends(ends, x[j]);
        ends.high = largest_over<kLanes>(ends.high, shared);
        ends.low = largest_over<kLanes>(ends.low, shared);
        finish_ends(ends, first, second);
        if constexpr (F::kScaling == kQuantile) {
            const float low = quantile_over<kLanes>(x, scales.quantile, shared);
            first = is_positive(ends) ? log_end(low) : second;
        }
    } else {
        first = float_of(largest_over<kLanes>(Magnitudes(x).most, shared));
        second = 0.0f;
    }
}

// 16 times the exponent of the block that a thread's eight elements belong to, whose largest
// magnitude is known.
template <class F>
QMAPS_INLINE std::int32_t block_sixteenths(const Scales& scales, const float* x, float largest,
                                           std::uint32_t* shared) {
    std::uint32_t least = 0;  // complement of the smallest magnitude but 0
    for (int j = 0; j < kUnit; ++j) {
        const std::uint32_t magnitude = bits_of(x[j]) & 0x7FFFFFFFu;
        least = magnitude != 0 && ~magnitude > least ? ~magnitude : least;
    }
    least = largest_over<F::kBlock / kUnit>(least, shared);
    const bool none = least == 0 || is_nan(largest);
    const float wanted = 16.0f * log2_of(static_cast<float>(scales.ratio));
    return sixteenths_of(none ? 1.0f : float_of(~least), none ? 1.0f : largest, wanted);
}

// The scales that eight elements are about to be encoded under. Those of blocks are found here, and
// stored; every thread of the block of threads calls it where the format has a kBlock.
template <class F>
QMAPS_INLINE void make_unit_scales(const Scales& scales, std::int64_t at, int count,
                                   const float* x, std::uint32_t* shared, UnitScales& under) {
    if constexpr (F::kBlock > 0) {
        block_scales<F>(scales, x, count, shared, under.first, under.second);
        __syncwarp();  // all have read the old scale that one of them is about to replace
        const bool writes = count > 0 && at % F::kBlock == 0;
        if constexpr (F::kInFormat) {
            const Part& part = scales.part[0];
            const int kind = static_cast<int>(part.kind);
            if (writes) keep_scale(kind, under.first, part.stored, block_of<F>(at));
            under.first = in_format(kind, under.first);
        } else if (writes) {
            scales.part[0].values[block_of<F>(at)] = under.first;
            if (F::kLog) scales.part[1].values[block_of<F>(at)] = under.second;
        }
        if constexpr (F::kScaling == kPowers) {
            const std::int32_t sixteenths = block_sixteenths<F>(scales, x, under.first, shared);
            under.second = exponent_of(sixteenths);
            if (writes)
                static_cast<std::uint8_t*>(scales.part[1].stored)[block_of<F>(at)] =
                    static_cast<std::uint8_t>(sixteenths);
        }
    } else {
        under.first = under.second = 0.0f;
        for (int j = 0; j < kUnit; ++j) under.each[j] = under.high[j] = 0.0f;
        if constexpr (F::kLog) {
            unit_ends<true>(scales, at, count, under.each, under.high);
        } else {
            unit_scales<true>(scales, at, count, under.each);
        }
    }
}

template <class F, class Book>
QMAPS_INLINE Codes<F::kBits> encode_under(const Book& codebook, const UnitScales& under,
                                          const Noise& noise, std::int64_t at, int count,
                                          const float* x) {
    float n[kUnit];
    if constexpr (F::kLog) {
        for (int j = 0; j < kUnit; ++j)
            n[j] = log_position(x[j], low_of<F>(under, j), high_of<F>(under, j));
    } else if constexpr (F::kScaling == kPowers) {
        for (int j = 0; j < kUnit; ++j) n[j] = expanded(x[j], under.first, under.second);
    } else if constexpr (F::kBlock > 0) {
        normalize_unit<F>(x, under.first, n);
    } else {
        for (int j = 0; j < kUnit; ++j) n[j] = normalized(x[j], under.each[j]);
    }
    return round_unit<F>(codebook, noise, at, count, n, x, under);
}

// Both; see `make_unit_scales` for who calls it.
template <class F, class Book>
QMAPS_INLINE Codes<F::kBits> encode_unit(const Book& codebook, const Scales& scales,
                                         const Noise& noise, std::int64_t at, int count,
                                         const float* x, std::uint32_t* shared) {
    UnitScales under;
    make_unit_scales<F>(scales, at, count, x, shared, under);
    return encode_under<F>(codebook, under, noise, at, count, x);
}

// Fold eight elements into the ends of their blocks' log2 ranges, which finish_ends finishes.
QMAPS_INLINE void fold_log_ends(const Scales& scales, std::int64_t at, int count,
                                const float* x) {
    const Part *lower = scales.part, *upper = scales.part + 1;
    std::int64_t current = -1;
    LogEnds ends;
    const auto raise = [&] {
        raise_to(lower->fresh + current, ends.low);
        raise_to(upper->fresh + current, ends.high);
    };
    in_part(*lower, at, count, [&](int j, std::int64_t index) {
        if (index != current && current >= 0) {
            raise();
            ends = {};
        }
        current = index;
        widen_ends(ends, x[j]);
    });
    if (current >= 0) raise();
}

// Fold the magnitudes of eight elements into the maxima of every part. Every thread of the warp
// calls it.
QMAPS_INLINE void fold_unit(const Scales& scales, std::int64_t at, int count, const float* x) {
    if (scales.log) {
        fold_log_ends(scales, at, count, x);
        return;
    }
    for (int p = 0; p < static_cast<int>(scales.parts); ++p) {
        const Part& part = scales.part[p];
        if (part.divisor == 1) {
            in_part(part, at, count, [&](int j, std::int64_t index) {
                raise_to(part.fresh + index, bits_of(x[j]) & 0x7FFFFFFFu);
            });
            continue;
        }
        // Runs of elements with one scale; the last one is left in `most`.
        std::int64_t current = -1;
        std::uint32_t most = 0;
        in_part(part, at, count, [&](int j, std::int64_t index) {
            const std::uint32_t magnitude = bits_of(x[j]) & 0x7FFFFFFFu;
            if (index != current && current >= 0) {
                raise_to(part.fresh + current, most);
                most = 0;
            }
            current = index;
            most = magnitude > most ? magnitude : most;
        });
        // Warps often lie within one block or row.
        const std::int64_t leader = __shfl_sync(kAll, current, 0);
        if (__ballot_sync(kAll, current == leader) == kAll) {
            most = largest_over<kWarp>(most, nullptr);
            if (threadIdx.x % kWarp == 0 && current >= 0) raise_to(part.fresh + current, most);
        } else if (current >= 0) {
            raise_to(part.fresh + current, most);
        }
    }
}

}  // namespace qmaps
