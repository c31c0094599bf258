#include "buckets.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace qmaps {
namespace {

constexpr int kCells = 256;
constexpr std::uint32_t kLeast = 96u << 23;  // 2^-31; what is smaller counts as this

float float_of(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
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

// A line (base + f * slope) >> 8 within the cells' bounds, if there is one.
bool fit(const Cells& cells, Buckets& buckets, int bucket) {
    const int rise = cells.most[kCells - 1] - cells.most[0];
    for (int wander = 0; wander <= 24; ++wander) {
        const int slope = rise + (wander % 2 ? (wander + 1) / 2 : -wander / 2);
        if (slope < 0 || slope > 127) continue;  // a signed byte
        int least = 0, most = 65535 - 255 * slope;
        for (int f = 0; f < kCells && least <= most; ++f) {
            least = std::max(least, cells.least[f] * 256 - f * slope);
            most = std::min(most, cells.most[f] * 256 + 255 - f * slope);
        }
        if (least > most) continue;
        const int base = least + (most - least) / 2;
        buckets.base_low[bucket] = static_cast<std::uint8_t>(base);
        buckets.base_high[bucket] = static_cast<std::uint8_t>(base >> 8);
        buckets.slope[bucket] = static_cast<std::uint8_t>(slope);
        return true;
    }
    return false;
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
            // itself occur, but a line must exist.
            const std::uint32_t bits = kLeast + (static_cast<std::uint32_t>(bucket) << 20) +
                                       (static_cast<std::uint32_t>(f) << 12);
            const bool smallest = bucket == 0 && f == 0;
            int low, high;
            ends_of(search, bits, 12, low, high);
            // Without negative limits, all that is negative or tiny counts as the smallest.
            cells.set(f, smallest ? std::min(low, zero) : low, high, rounds);
            if (!negative_too) continue;
            ends_of(search, bits | 0x80000000u, 12, low, high);
            cells.narrow(f, low, smallest ? std::max(high, zero) : high, rounds, mirror);
        }
        if (!fit(cells, buckets, bucket)) return false;
    }
    buckets.mirror = static_cast<std::uint8_t>(mirror);
    return true;
}

}  // namespace

void find_buckets(Search& search) {
    using Kind = Buckets::Kind;
    Buckets& buckets = search.buckets;
    // Short lists are searched faster; beyond 1 - 2^-24 the exponents come again.
    if (search.count < 32) return;
    if (search.limit[0] <= -1.0f || search.limit[search.count - 1] >= 1.0f) return;
    const int zero = limits_below(search, 0.0f);
    for (int rounds = 1; rounds <= 2; ++rounds) {
        buckets.rounds = rounds;
        if (zero == 0) {
            buckets.kind = Kind::kUnsigned;
            if (by_magnitude(search, rounds, false, 0, buckets)) return;
            continue;
        }
        buckets.kind = Kind::kMirrored;
        for (int mirror = std::min(255, 2 * zero); mirror >= std::max(0, 2 * zero - 3); --mirror)
            if (by_magnitude(search, rounds, true, mirror, buckets)) return;
    }
    buckets.rounds = 0;
}

}  // namespace qmaps
