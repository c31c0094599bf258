// Search and look-up in plain C++, in loops that compilers vectorize where they can.
#include "search_one.hpp"

inline void search_codes(const Search& search, const float* n, std::uint8_t* codes,
                         std::int64_t count, Scratch&) {
    if (search.even.shift) {
        for (std::int64_t i = 0; i < count; ++i)
            codes[i] = even_number(search.even, static_cast<std::int32_t>(bits_of(n[i])));
        return;
    }
    for (std::int64_t i = 0; i < count; ++i) codes[i] = search_one(search, n[i]);
}

// Codes where the bits of values are evenly spaced: those of the lower neighbour are the first of a
// value's own.
inline void round_bits(const Codebook& codebook, const float* __restrict n,
                       const std::uint16_t* __restrict draws, std::uint8_t* __restrict codes,
                       std::int64_t count) {
    const Lookup& lookup = codebook.values;
    const float lowest = lookup.value[0], highest = lookup.value[codebook.size - 1];
    const std::uint32_t first = lookup.first, step = 1u << lookup.shift;
    const int shift = lookup.shift;
    const float bend = codebook.bend;
    for (std::int64_t i = 0; i < count; ++i) {
        const float below = n[i] < highest ? n[i] : highest;  // infinity takes the last code
        const float value = below > lowest ? below : lowest;
        const std::uint32_t bits = bits_of(value) & (0u - step);
        const bool up = rounds_up(draws[i], 0u, value, float_of(bits), float_of(bits + step), bend);
        codes[i] = static_cast<std::uint8_t>(((bits - first) >> shift) + (up ? 1u : 0u));
    }
}

// Codes that are rounded stochastically; the first value is element `first` of the tensor.
inline void round_codes(const Codec& codec, const float* n, std::int64_t first,
                        std::uint8_t* codes, std::int64_t count, Scratch& scratch) {
    const Codebook& codebook = *codec.codebook;
    const float* value = codebook.values.value;
    const bool even = codebook.values.shift != 0;
    if (!even) search_codes(codebook.stochastic, n, codes, count, scratch);
    for (std::int64_t i = 0; i < count; i += kTile) {
        const std::int64_t some = count - i < kTile ? count - i : kTile;
        const std::uint16_t* draws = draws_of(codec.noise, first + i, some, scratch);
        if (even) {
            round_bits(codebook, n + i, draws, codes + i, some);
            continue;
        }
        for (std::int64_t j = 0; j < some; ++j) {
            scratch.low[j] = value[codes[i + j]];
            scratch.high[j] = value[codes[i + j] + 1];
        }
        raise(codes + i, codebook.size - 1, n + i, scratch.low, scratch.high, draws,
              mirror_of(codec.noise.key1), some, codebook.bend);
    }
}

// No gain here in doing both at once.
inline bool encode_divided(const Codec&, const float*, const float*, std::int64_t, std::int64_t,
                           std::uint8_t*, std::int64_t, Scratch&) {
    return false;
}

// Whether codes of 4 bits are looked up as they are stored; else a byte each.
inline constexpr bool kReadsHalves = false;

// Values of codes times a scale.
inline void look_up_scaled(const Lookup& lookup, const std::uint8_t* __restrict codes, bool,
                           float scale, float* __restrict out, std::int64_t count) {
    if (lookup.shift) {
        const std::uint32_t first = lookup.first;
        const int shift = lookup.shift;
        for (std::int64_t i = 0; i < count; ++i)
            out[i] = float_of(first + (static_cast<std::uint32_t>(codes[i]) << shift)) * scale;
        return;
    }
    for (std::int64_t i = 0; i < count; ++i) out[i] = lookup.value[codes[i]] * scale;
}

#include "lanes.hpp"
