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

// No gain here in doing both at once.
inline bool search_blocks(const Search&, const float*, const float*, std::int64_t, std::uint8_t*,
                          std::int64_t, Scratch&) {
    return false;
}

// Whether codes of 4 bits are looked up as they are stored; else a byte each.
inline constexpr bool kReadsHalves = false;

inline void look_up(const Lookup& lookup, const std::uint8_t* codes, bool, float* out,
                    std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = lookup.value[codes[i]];
}

// Round codes of the lower neighbours up by chance: scratch.words against how far n lies between.
inline void round_up(const Codebook& codebook, const float* n, std::uint8_t* codes, std::int64_t count,
                     Scratch& scratch) {
    look_up(codebook.values, codes, false, scratch.low, count);
    look_up(codebook.gaps, codes, false, scratch.high, count);
    for (std::int64_t i = 0; i < count; ++i) {
        codes[i] += rounds_up(scratch.words[i], n[i], scratch.low[i], scratch.high[i]) ? 1 : 0;
    }
}

inline void look_up_elements(const Lookup& lookup, const std::uint8_t* codes, bool,
                             const float* scale, float* out, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = lookup.value[codes[i]] * scale[i];
}

inline bool look_up_blocks(const Lookup&, const std::uint8_t*, bool, const float*, std::int64_t,
                           std::int64_t, float*, std::int64_t) {
    return false;
}

// There are no stores past the caches that every compiler knows.
inline constexpr bool kStreams = false;
inline void stream(const float*, float*, std::int64_t) {}
inline void finish_streams() {}
