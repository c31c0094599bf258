// Search and look-up in plain C++: a table by the value's upper 16 bits, then full comparisons.

inline std::uint8_t search_one(const Search& search, float value) {
    const int code = search.first[ordered_key(bits_of(value))];
    return static_cast<std::uint8_t>(refined(search.limit, code, search.steps, value));
}

inline void search_codes(const Search& search, const float* n, std::uint8_t* codes,
                         std::int64_t count, Scratch&) {
    if (search.repeats == 1) {
        for (std::int64_t i = 0; i < count; ++i) {
            const int code = search.first[ordered_key(bits_of(n[i]))];
            codes[i] = static_cast<std::uint8_t>(code + (n[i] > search.limit[code] ? 1 : 0));
        }
        return;
    }
    for (std::int64_t i = 0; i < count; ++i) codes[i] = search_one(search, n[i]);
}

// Codes that are rounded stochastically; the first value is element `first` of the tensor.
inline void round_codes(const Codec& codec, const float* n, std::int64_t first,
                        std::uint8_t* codes, std::int64_t count, Scratch& scratch) {
    const Codebook& codebook = *codec.codebook;
    const float* value = codebook.values.value;
    search_codes(codebook.stochastic, n, codes, count, scratch);
    for (std::int64_t i = 0; i < count; i += kTile) {
        const std::int64_t some = count - i < kTile ? count - i : kTile;
        for (std::int64_t j = 0; j < some; ++j) {
            scratch.low[j] = value[codes[i + j]];
            scratch.high[j] = value[codes[i + j] + 1];
        }
        const std::uint16_t* draws = draws_of(codec.noise, first + i, some, scratch);
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

inline void look_up(const Lookup& lookup, const std::uint8_t* codes, bool, float* out,
                    std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = lookup.value[codes[i]];
}

inline bool look_up_blocks(const Lookup&, const std::uint8_t*, bool, const PartView&, std::int64_t,
                           float*, std::int64_t, bool) {
    return false;
}

inline bool look_up_least(const Lookup&, const std::uint8_t*, bool, const ScaleView&, std::int64_t,
                          float*, std::int64_t, bool) {
    return false;
}

// There are no stores past the caches that every compiler knows.
inline constexpr bool kStreams = false;
inline void stream(const float*, float*, std::int64_t) {}
inline void finish_streams() {}

// Nothing is looked up in registers.
inline int decode_shuffles(const Codebook&) { return 0; }
inline int encode_shuffles(const Codebook&, bool) { return 0; }
