#include "buckets.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace qmaps {
namespace {

constexpr int kCells = 16;
constexpr int kLoose = 16;  // bits of a float that its cell does not know
constexpr std::uint32_t kLeast = 96u << 23;        // 2^-31; what is smaller counts as this
constexpr std::uint32_t kLeastSplit = 112u << 23;  // 2^-15, where each sign has half the buckets

float float_of(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

std::uint32_t bits_of(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

int limits_below(const Search& search, float value) {
    return static_cast<int>(
        std::lower_bound(search.limit, search.limit + search.count, value) - search.limit);
}

// What a guess may be in each of a bucket's cells: from `least` to `most`.
struct Cells {
    int least[kCells], most[kCells];

    // The guess must lead, in `rounds` steps up, to every number from `low` to `high`.
    void set(int f, int low, int high, int rounds) {
        least[f] = high - rounds;
        most[f] = low;
    }
    // The same for the mirror image of the guess, which is at least 0.
    void narrow(int f, int low, int high, int rounds, int mirror) {
        least[f] = std::max(least[f], mirror - low);
        if (high > rounds) most[f] = std::min(most[f], mirror - high + rounds);
    }
};

// A guess that all cells can share, if there is one.
bool fit_flat(const Cells& cells, Buckets& buckets, int bucket) {
    const int least = std::max(0, *std::max_element(cells.least, cells.least + kCells));
    if (least > *std::min_element(cells.most, cells.most + kCells)) return false;
    buckets.base[bucket] = static_cast<std::uint8_t>(least);
    return true;
}

// Steps of at most one from cell to cell within their bounds, if there are some.
bool fit(const Cells& cells, Buckets& buckets, int bucket) {
    int least[kCells];
    for (int f = kCells - 1; f >= 0; --f)
        least[f] = f + 1 < kCells ? std::max(cells.least[f], least[f + 1] - 1) : cells.least[f];
    int guess = std::max(0, least[0]);
    unsigned rises = 0;
    buckets.base[bucket] = static_cast<std::uint8_t>(guess);
    for (int f = 0; f < kCells; ++f) {
        if (guess < least[f]) {
            ++guess;
            rises |= 1u << f;
        }
        if (guess > cells.most[f]) return false;
    }
    buckets.rises_low[bucket] = static_cast<std::uint8_t>(rises);
    buckets.rises_high[bucket] = static_cast<std::uint8_t>(rises >> 8);
    return true;
}

// The numbers of limits below the least and the greatest value whose lower `loose` bits are free.
void ends_of(const Search& search, std::uint32_t bits, int loose, int& low, int& high) {
    const int a = limits_below(search, float_of(bits));
    const int b = limits_below(search, float_of(bits | ((1u << loose) - 1u)));
    low = std::min(a, b);
    high = std::max(a, b);
}

// Buckets of eighths of binades of the magnitude.
bool by_magnitude(const Search& search, int rounds, bool negative_too, int mirror,
                  Buckets& buckets) {
    const int zero = limits_below(search, 0.0f);
    for (int bucket = 0; bucket < 256; ++bucket) {
        Cells cells;
        for (int f = 0; f < kCells; ++f) {
            // Eight buckets for 1 and above, infinity among it: only the first 31 binades and 1
            // itself occur, but a guess must exist.
            const std::uint32_t bits = kLeast + (static_cast<std::uint32_t>(bucket) << 20) +
                                       (static_cast<std::uint32_t>(f) << kLoose);
            const bool smallest = bucket == 0 && f == 0;
            int low, high;
            ends_of(search, bits, kLoose, low, high);
            // Without negative limits, all that is negative or tiny counts as the smallest.
            cells.set(f, smallest ? std::min(low, zero) : low, high, rounds);
            if (!negative_too) continue;
            ends_of(search, bits | 0x80000000u, kLoose, low, high);
            cells.narrow(f, low, smallest ? std::max(high, zero) : high, rounds, mirror);
        }
        if (!(buckets.flat ? fit_flat : fit)(cells, buckets, bucket)) return false;
    }
    buckets.mirror = static_cast<std::uint8_t>(mirror);
    return true;
}

// The same for each sign by itself, in half as many; of negative values the cells are in reverse,
// so that the guess rises with the value.
bool by_sign(const Search& search, int rounds, Buckets& buckets) {
    const int zero = limits_below(search, 0.0f);
    for (int bucket = 0; bucket < 256; ++bucket) {
        const bool negative = bucket >= 128;
        Cells cells;
        for (int f = 0; f < kCells; ++f) {
            const int position = negative ? kCells - 1 - f : f;
            const std::uint32_t bits = kLeastSplit + (static_cast<std::uint32_t>(bucket % 128) << 20) +
                                       (static_cast<std::uint32_t>(position) << kLoose);
            int low, high;
            ends_of(search, bits | (negative ? 0x80000000u : 0u), kLoose, low, high);
            if (bucket % 128 == 0 && position == 0) {
                low = std::min(low, zero);
                high = std::max(high, zero);
            }
            cells.set(f, low, high, rounds);
        }
        if (!fit(cells, buckets, bucket)) return false;
    }
    return true;
}

}  // namespace

void find_pieces(Search& search) {
    const int zero = limits_below(search, 0.0f);
    const bool has_sign = zero > 0;
    const int loose = has_sign ? 17 : 16;
    const std::uint32_t low_bits = (1u << loose) - 1u;
    const float least = float_of(static_cast<std::uint32_t>(kLeastPiece));
    // What counts as 2^-31 or -2^-31 has as many limits below it; and so have 1 and infinity.
    if (limits_below(search, least) != zero) return;
    if (limits_below(search, -least) != limits_below(search, -float_of(1u))) return;
    if (search.limit[0] <= -1.0f || search.limit[search.count - 1] >= 1.0f) return;
    auto entry = std::make_unique<std::uint32_t[]>(kPieces);
    for (std::uint32_t piece = 0; piece < kPieces; ++piece) {
        // The least float of the piece. Keys of negative values are those of positive ones, turned round.
        const bool negative = has_sign && piece < kPieces / 2;
        const std::uint32_t place = has_sign ? piece % (kPieces / 2) : piece;
        const std::uint32_t turned = negative ? kPieces / 2 - 1 - place : place;
        const std::uint32_t bits = static_cast<std::uint32_t>(kLeastPiece) + (turned << loose);
        const float low = float_of(negative ? bits | low_bits | 0x80000000u : bits);
        const float high = float_of(negative ? bits | 0x80000000u : bits | low_bits);
        const int below = limits_below(search, low), more = limits_below(search, high) - below;
        if (more > 1) return;
        std::uint32_t limit = low_bits;
        if (more) {
            const auto its_bits = static_cast<std::int32_t>(bits_of(search.limit[below]));
            limit = piece_key(its_bits, has_sign) & low_bits;
        }
        entry[piece] = (static_cast<std::uint32_t>(below) << loose) + (low_bits - limit);
    }
    search.pieces.entry = std::move(entry);
    search.pieces.loose = loose;
}

bool is_mirrored(const Codebook& codebook) {
    const float* value = codebook.values.value;
    if (codebook.size % 2 == 0) return false;
    const int zero = codebook.size / 2;
    for (int k = 0; k <= zero; ++k)
        if (bits_of(value[zero + k]) != bits_of(0.0f - value[zero - k])) return false;
    return true;
}

void find_folded(Codebook& codebook) {
    constexpr int kBuckets = 64, kMost = 16;
    const float* value = codebook.values.value;
    const int size = codebook.size;
    const int zero = value[0] < 0.0f ? size / 2 : 0;
    const int last = size - 1 - zero;  // the last magnitude
    // Up to 1.5 times the last value, values do not exceed the last bucket.
    if (last < 1 || last >= kMost || !(value[size - 1] <= 1.0f)) return;
    if (zero > 0 && !is_mirrored(codebook)) return;
    for (int k = 0; k < last; ++k)
        if (!(value[zero + k] < value[zero + k + 1])) return;
    Folded folded;
    folded.zero = static_cast<std::uint8_t>(zero);
    folded.last = static_cast<std::uint8_t>(last);
    const float* magnitude = value + zero;
    const auto next_of = [&](float number) {
        return std::min(static_cast<int>(std::upper_bound(magnitude + 1, magnitude + last, number) - magnitude), last);
    };
    const std::uint32_t end = bits_of(2.0f) >> 16;
    bool found = false;
    for (folded.shift = 8; !found && folded.shift > 3;) {
        --folded.shift;
        folded.first = static_cast<std::uint16_t>(end - (kBuckets << folded.shift));
        found = true;
        for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
            const std::uint32_t begin = folded.first + (bucket << folded.shift);
            const std::uint32_t after = begin + (1u << folded.shift);
            const int next = next_of(bucket == 0 ? 0.0f : float_of(begin << 16));
            folded.next[bucket] = static_cast<std::uint8_t>(next);
            found = found && next_of(float_of((after << 16) - 1u)) <= next + 1;
        }
    }
    if (!found) return;
    for (int k = 0; k <= last; ++k) {
        const std::uint32_t bits = bits_of(magnitude[k]);
        const std::uint32_t gap = k == 0 ? 0 : bits_of(magnitude[k] - magnitude[k - 1]);
        for (int byte = 0; byte < 4; ++byte) {
            folded.magnitude[byte][k] = static_cast<std::uint8_t>(bits >> (8 * byte));
            folded.gap[byte][k] = static_cast<std::uint8_t>(gap >> (8 * byte));
        }
    }
    codebook.folded = folded;
}

void find_buckets(Search& search) {
    using Kind = Buckets::Kind;
    Buckets& buckets = search.buckets;
    // Beyond 1 - 2^-24 the exponents come again.
    if (search.limit[0] <= -1.0f || search.limit[search.count - 1] >= 1.0f) return;
    const int zero = limits_below(search, 0.0f);
    // Beyond that many steps the binary search is no slower.
    for (int rounds = 1; rounds <= search.repeats + 2; ++rounds) {
        buckets.rounds = rounds;
        for (const bool flat : {true, false}) {
            buckets.flat = flat;
            buckets.kind = zero == 0 ? Kind::kUnsigned : Kind::kMirrored;
            if (zero == 0 && by_magnitude(search, rounds, false, 0, buckets)) return;
            if (zero == 0) continue;
            for (int mirror = std::min(255, 2 * zero); mirror >= std::max(0, 2 * zero - 3); --mirror)
                if (by_magnitude(search, rounds, true, mirror, buckets)) return;
        }
        buckets.kind = Kind::kSplit;
        if (zero > 0 && by_sign(search, rounds, buckets)) return;
    }
    buckets.rounds = 0;
}

}  // namespace qmaps
