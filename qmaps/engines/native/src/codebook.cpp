#include "codebook.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "buckets.hpp"

namespace qmaps {
namespace {

#include "qmaps/engines/kernels/language.hpp"

#include "qmaps/engines/kernels/floats.hpp"
#include "qmaps/engines/kernels/half_codes.hpp"

void fill_planes(const float* values, std::uint8_t (*plane)[kMaxCodes]) {
    for (int c = 0; c < kMaxCodes; ++c)
        for (int k = 0; k < 4; ++k)
            plane[k][c] = static_cast<std::uint8_t>(bits_of(values[c]) >> (8 * k));
}

// The sorted index that a node of `level` stands for, out of 2^total - 1.
int node_index(int level, int path, int total) {
    int index = 0;
    for (int l = 0; l < level; ++l)
        if (path >> l & 1) index += 1 << (total - 1 - l);
    return index + (1 << (total - 1 - level)) - 1;
}

void find_even_limits(EvenLimits& even, const std::vector<float>& limits) {
    if (limits.size() < 2 || !(limits[0] > 0.0f)) return;
    const std::uint32_t first = bits_of(limits[0]), step = bits_of(limits[1]) - first;
    if (step < 2 || (step & (step - 1)) != 0 || step > 1u << 23) return;
    for (std::size_t i = 1; i < limits.size(); ++i)
        if (bits_of(limits[i]) != first + static_cast<std::uint32_t>(i) * step) return;
    even.low = static_cast<std::int32_t>(first - step + 1);
    even.high = static_cast<std::int32_t>(bits_of(limits.back()) + 1);
    while (1u << even.shift < step) ++even.shift;
}

void fill(Search& search, const std::vector<float>& limits, bool brief) {
    search.count = static_cast<int>(limits.size());
    const float infinity = std::numeric_limits<float>::infinity();
    for (int i = 0; i < 2 * kMaxCodes; ++i) {
        const bool real = i < search.count;
        // -0 would sort below +0 by its bits, though neither is greater.
        search.limit[i] = !real ? infinity : limits[i] == 0.0f ? 0.0f : limits[i];
    }
    float padded[kMaxCodes];
    for (int i = 0; i < kMaxCodes; ++i)
        padded[i] = i < search.count ? search.limit[i] : std::numeric_limits<float>::quiet_NaN();
    fill_planes(padded, search.plane);
    std::copy(padded, padded + 32, search.few);
    for (int level = 0; level < 4; ++level)
        for (int node = 0; node < 8; ++node)
            search.tree[level][node] = search.limit[((2 * node + 1) << (3 - level)) % 16 - 1];

    std::uint16_t key[kMaxCodes];
    int run = 0, longest = 0;
    for (int i = 0; i < kMaxCodes; ++i) {
        key[i] = i < search.count ? ordered_key(bits_of(search.limit[i])) : 0xFFFF;
        run = i > 0 && i < search.count && key[i] == key[i - 1] ? run + 1 : 1;
        if (i < search.count && run > longest) longest = run;
    }
    search.repeats = longest;
    while ((1 << search.steps) - 1 < longest) ++search.steps;
    search.levels = 1;
    while ((1 << search.levels) - 1 < search.count) ++search.levels;

    for (int level = 0; level < 8; ++level)
        for (int path = 0; path < 128; ++path)
            search.level[level][path] = key[node_index(level, path & ((1 << level) - 1), 8)];
    search.first = std::make_unique<std::uint8_t[]>(65536);
    int below = 0;
    for (int k = 0; k < 65536; ++k) {
        search.first[k] = static_cast<std::uint8_t>(below);
        while (below < search.count && key[below] == k) ++below;
    }
    find_even_limits(search.even, limits);
    if (brief) return;
    find_buckets(search);
    find_pieces(search);
}

// Evenly spaced limits, if every value's number is the guess or one more: both grow with the value, so
// the ends of each range of values with one number tell.
void find_even(WideSearch& search, int count) {
    const float* limit = search.limit.get();
    if (count < 2 || !(limit[count - 1] > limit[0])) return;
    const double slope = (count - 1) / (static_cast<double>(limit[count - 1]) - limit[0]);
    WideSearch even;
    even.slope = static_cast<float>(slope);
    even.offset = static_cast<float>(0.5 - limit[0] * slope);
    even.top = static_cast<float>(count);
    const float infinity = std::numeric_limits<float>::infinity();
    for (int i = 0; i < count; ++i) {
        // At a limit its own index, right above it one more.
        if (i + 1 < count && limit[i + 1] == limit[i]) return;
        if (even_guess(even, limit[i]) > i || even_guess(even, std::nextafter(limit[i], infinity)) < i)
            return;
    }
    search.slope = even.slope;
    search.offset = even.offset;
    search.top = even.top;
}

void fill_wide(WideSearch& search, const std::vector<float>& limits) {
    const auto count = static_cast<int>(limits.size());
    std::vector<std::uint16_t> key(limits.size());
    int run = 0, longest = 1;
    for (int i = 0; i < count; ++i) {
        key[i] = ordered_key(bits_of(limits[i] == 0.0f ? 0.0f : limits[i]));
        run = i > 0 && key[i] == key[i - 1] ? run + 1 : 1;
        longest = std::max(longest, run);
    }
    while ((1 << search.steps) - 1 < longest) ++search.steps;
    search.limit = std::make_unique<float[]>(count + (std::size_t{1} << search.steps));
    for (int i = 0; i < count + (1 << search.steps); ++i)
        search.limit[i] = i >= count             ? std::numeric_limits<float>::infinity()
                          : limits[i] == 0.0f ? 0.0f
                                              : limits[i];
    search.first = std::make_unique<std::uint16_t[]>(65536);
    int below = 0;
    for (int k = 0; k < 65536; ++k) {
        search.first[k] = static_cast<std::uint16_t>(below);
        while (below < count && key[below] == k) ++below;
    }
    find_even(search, count);
}

// The lowest code of each value's equals, or nothing where all are distinct.
template <class Code>
std::unique_ptr<Code[]> lowest_equals(const std::vector<float>& values) {
    if (std::adjacent_find(values.begin(), values.end()) == values.end()) return nullptr;
    auto lowest = std::make_unique<Code[]>(values.size());
    for (std::size_t c = 1; c < values.size(); ++c)
        lowest[c] = values[c] == values[c - 1] ? lowest[c - 1] : static_cast<Code>(c);
    return lowest;
}

// Whether the values are a format's finite numbers, and the limits those of its rounding.
template <class Widen, class Round>
bool has_format(WideCodebook& book, const std::vector<float>& values,
                const std::vector<float>& limits, const Widen& widen, const Round& round) {
    const std::size_t last = values.size() - 1;
    const std::size_t zero = values[0] < 0.0f ? last / 2 : 0;
    if (last - zero >= kHalfSign) return false;
    book.zero = static_cast<std::uint16_t>(zero);
    book.most = static_cast<std::uint16_t>(last - zero);
    const float infinity = std::numeric_limits<float>::infinity();
    for (std::size_t c = 0; c <= last; ++c) {
        const auto half = half_of_code(static_cast<std::uint16_t>(c), book.zero, book.most);
        if (bits_of(widen(half)) != bits_of(values[c])) return false;
        if (c == last) break;
        const std::uint16_t below = round(limits[c]);
        const std::uint16_t above = round(std::nextafter(limits[c], infinity));
        if (code_of_half(below, book.zero, book.most) != c ||
            code_of_half(above, book.zero, book.most) != c + 1)
            return false;
    }
    return true;
}

void find_format(WideCodebook& book, const std::vector<float>& values,
                 const std::vector<float>& limits) {
    if (has_format(book, values, limits, from_bf16, to_bf16)) {
        book.format = Dtype::kBfloat16;
    } else if (has_format(book, values, limits, from_f16, to_f16)) {
        book.format = Dtype::kFloat16;
    }
}

void find_even_bits(Lookup& lookup, const std::vector<float>& values, int width) {
    if (values.size() != std::size_t{1} << width || !(values[0] > 0.0f)) return;
    const std::uint32_t first = bits_of(values[0]), step = bits_of(values[1]) - first;
    if (step == 0 || (step & (step - 1)) != 0 || step > 1u << 23 || first % step != 0) return;
    for (std::size_t c = 1; c < values.size(); ++c)
        if (bits_of(values[c]) != first + static_cast<std::uint32_t>(c) * step) return;
    lookup.first = first;
    while (1u << lookup.shift < step) ++lookup.shift;
}

// Evenly spaced values, if each is computed with all of its bits.
void find_even_values(EvenValues& even_values, const std::vector<float>& values) {
    const auto last = static_cast<int>(values.size()) - 1;
    if (last < 1 || !(values[last] > values[0])) return;
    const double gap = (static_cast<double>(values[last]) - values[0]) / last;
    EvenValues even;
    even.last = last;
    // In halves, since signed codebooks without zero have it between two codes.
    even.first = static_cast<float>(std::round(2 * values[0] / gap) / 2);
    int exponent = 0;
    const double mantissa = std::frexp(gap, &exponent);
    even.coarse = static_cast<float>(std::ldexp(std::floor(std::ldexp(mantissa, 11)), exponent - 11));
    even.fine = static_cast<float>(gap - even.coarse);
    for (int c = 0; c <= last; ++c)
        if (bits_of(even_value(even, c)) != bits_of(values[c])) return;
    even_values = even;
}

}  // namespace

Codebook::Codebook(const std::vector<float>& ascending, const std::vector<float>& limits,
                   const std::vector<float>& below, int width, bool brief)
    : bits(width), size(static_cast<int>(ascending.size())) {
    if (bits > 8) {
        wide = std::make_unique<WideCodebook>();
        // Codes that the codebook does not have stand for its last value.
        const std::size_t entries = std::max(ascending.size() + 1, std::size_t{1} << bits);
        wide->value = std::make_unique<float[]>(entries);
        std::fill_n(wide->value.get(), entries, ascending.back());
        std::copy(ascending.begin(), ascending.end(), wide->value.get());
        wide->lowest = lowest_equals<std::uint16_t>(ascending);
        fill_wide(wide->nearest, limits);
        fill_wide(wide->stochastic, below);
        if (bits == 16) find_format(*wide, ascending, limits);
        // Lower neighbours are then known by their values alone.
        if (wide->stochastic.slope != 0.0f) find_even_values(wide->even, ascending);
        return;
    }
    lowest = lowest_equals<std::uint8_t>(ascending);
    fill(nearest, limits, brief);
    fill(stochastic, below, brief);
    for (int c = 0; c <= kMaxCodes; ++c) values.value[c] = ascending[c < size ? c : size - 1];
    values.codes = 1 << bits;
    fill_planes(values.value, values.plane);
    find_even_bits(values, ascending, bits);
#if defined(QMAPS_ARM)
    find_folded(*this);
    if (size > 32 && is_mirrored(*this)) values.zero = size / 2;
#endif
}

}  // namespace qmaps
