// Counting, collecting and sorting floats by their bits; see ../selection.hpp.

inline std::uint32_t word_at(const void* x, std::int64_t i) {
    std::uint32_t word;
    __builtin_memcpy(&word, static_cast<const char*>(x) + i * 4, sizeof word);
    return word;
}

inline void count_tops(const void* x, Dtype dtype, std::int64_t begin, std::int64_t end,
                       std::uint32_t* counts) {
    if (dtype == Dtype::kFloat32) {
#pragma GCC unroll 8
        for (std::int64_t i = begin; i < end; ++i) ++counts[word_at(x, i) >> (32 - kTopBits)];
    } else {
        const auto* half = static_cast<const std::uint16_t*>(x);
        for (std::int64_t i = begin; i < end; ++i) ++counts[half[i]];
    }
}

// The cell that a float lies in; 0 for the number of digits leaves it open.
template <int Digits>
inline std::uint32_t cell_of(std::uint32_t bits, const Cells& cells) {
    std::uint32_t cell = cells.tables[0][bits >> (32 - kTopBits)];
    for (int d = 1; d < (Digits ? Digits : cells.digits); ++d) {
        const std::uint32_t digit = bits >> cells.shifts[d] & ((1u << cells.widths[d]) - 1u);
        cell = cells.tables[d][cell << cells.widths[d] | digit];
    }
    return cell;
}

// What is counted or stored might overlap the caller's cells as far as the compiler knows, but not
// a copy of them.
template <int Digits>
inline void count_digits_of(const void* x, std::int64_t begin, std::int64_t end, const Cells cells,
                            int width, std::uint32_t* counts) {
    const int shift = cells.shifts[cells.digits - 1] - width;
    const std::uint32_t mask = (1u << width) - 1u;
    for (std::int64_t i = begin; i < end; ++i) {
        const std::uint32_t bits = word_at(x, i);
        ++counts[cell_of<Digits>(bits, cells) << width | (bits >> shift & mask)];
    }
}

inline void count_digits(const void* x, std::int64_t begin, std::int64_t end, const Cells& cells,
                         int width, std::uint32_t* counts) {
    if (cells.digits == 1) return count_digits_of<1>(x, begin, end, cells, width, counts);
    if (cells.digits == 2) return count_digits_of<2>(x, begin, end, cells, width, counts);
    count_digits_of<0>(x, begin, end, cells, width, counts);
}

// Every element is stored, and the place moves on after those that are wanted: no branches.
template <class Wanted>
inline std::int64_t collect_if(const void* x, std::int64_t begin, std::int64_t end,
                               std::uint32_t* to, const Wanted& wanted) {
    std::uint32_t* next = to;
#pragma GCC unroll 8
    for (std::int64_t i = begin; i < end; ++i) {
        const std::uint32_t bits = word_at(x, i);
        *next = bits;
        next += wanted(bits);
    }
    return next - to;
}

inline std::int64_t collect(const void* x, std::int64_t begin, std::int64_t end,
                            const Cells& shared, const std::uint8_t* wanted_tops,
                            std::uint32_t* to) {
    const Cells cells = shared;
    if (cells.digits == 1)  // a byte for each top fits the fastest cache, where a number would not
        return collect_if(x, begin, end, to,
                          [&](std::uint32_t bits) { return wanted_tops[bits >> (32 - kTopBits)]; });
    if (cells.digits == 2)
        return collect_if(x, begin, end, to,
                          [&](std::uint32_t bits) { return cell_of<2>(bits, cells) != 0; });
    return collect_if(x, begin, end, to,
                      [&](std::uint32_t bits) { return cell_of<0>(bits, cells) != 0; });
}

inline std::uint32_t key_of_bits(std::uint32_t bits) {
    return bits ^ (static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 31) | 0x80000000u);
}

inline float of_key(std::uint32_t key) {
    return float_of(key ^
                    (static_cast<std::uint32_t>(~static_cast<std::int32_t>(key) >> 31) | 0x80000000u));
}

template <class BitsAt>
inline std::int64_t fill_keys(const BitsAt& bits_at, std::int64_t count, std::uint32_t* keys) {
    std::int64_t bad = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        const std::uint32_t bits = bits_at(i);
        bad += (bits & kInfinityBits) == kInfinityBits ? 1 : 0;
        keys[i] = key_of_bits(bits);
    }
    return bad;
}

inline std::int64_t keys(const void* x, Dtype dtype, std::int64_t begin, std::int64_t count,
                         std::uint32_t* to) {
    if (dtype == Dtype::kFloat32)
        return fill_keys([&](std::int64_t i) { return word_at(x, begin + i); }, count, to);
    const std::uint16_t* half = static_cast<const std::uint16_t*>(x) + begin;
    if (dtype == Dtype::kBfloat16)
        return fill_keys([&](std::int64_t i) { return bits_of(from_bf16(half[i])); }, count, to);
    return fill_keys([&](std::int64_t i) { return bits_of(from_f16(half[i])); }, count, to);
}

inline std::uint32_t* insertion_sort(std::uint32_t* keys, std::int64_t count) {
    for (std::int64_t i = 1; i < count; ++i) {
        const std::uint32_t key = keys[i];
        std::int64_t j = i;
        for (; j > 0 && keys[j - 1] > key; --j) keys[j] = keys[j - 1];
        keys[j] = key;
    }
    return keys;
}

// Radix sort in three digits of 11 bits, the lowest first.
inline std::uint32_t* sort_keys(std::uint32_t* keys, std::uint32_t* spare, std::int64_t count) {
    constexpr int kWidth = 11, kDigits = 3;
    constexpr std::uint32_t kMask = (1u << kWidth) - 1u;
    if (count <= 32) return insertion_sort(keys, count);
    std::uint32_t places[kDigits][1u << kWidth] = {};
    for (std::int64_t i = 0; i < count; ++i)
        for (int d = 0; d < kDigits; ++d) ++places[d][keys[i] >> (d * kWidth) & kMask];
    bool same[kDigits];  // one digit for all
    for (int d = 0; d < kDigits; ++d)
        same[d] = places[d][keys[0] >> (d * kWidth) & kMask] == count;
    std::uint32_t before[kDigits] = {};
    for (std::uint32_t digit = 0; digit <= kMask; ++digit)
        for (int d = 0; d < kDigits; ++d) {
            const std::uint32_t here = places[d][digit];
            places[d][digit] = before[d];
            before[d] += here;
        }
    for (int d = 0; d < kDigits; ++d) {
        if (same[d]) continue;
        std::uint32_t* place = places[d];
        const int shift = d * kWidth;
#pragma GCC unroll 4
        for (std::int64_t i = 0; i < count; ++i)
            spare[place[keys[i] >> shift & kMask]++] = keys[i];
        std::uint32_t* sorted = spare;
        spare = keys;
        keys = sorted;
    }
    return keys;
}

// See qmaps.quantiles: the same float64 operations in the same order.
inline void quantiles(const std::uint32_t* sorted, std::int64_t size, const std::int64_t* below,
                      const double* fraction, std::int64_t count, double weight, double* to) {
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t above = below[i] + 1 < size ? below[i] + 1 : below[i];
        const double low = of_key(sorted[below[i]]);
        const double high = of_key(sorted[above]);
        to[i] = (low + (high - low) * fraction[i]) * weight;
    }
}

constexpr Selection kSelection = {count_tops, count_digits, collect, keys,
                                  sort_keys,  of_key,       quantiles};
