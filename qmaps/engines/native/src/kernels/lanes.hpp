// What instruction sets without tables of 256 entries in registers share.

inline void look_up(const Lookup& lookup, const std::uint8_t* codes, bool halves, float* out,
                    std::int64_t count) {
    look_up_scaled(lookup, codes, halves, 1.0f, out, count);
}

// Values times the scale of their block, where that can be done in one go; at: of the first.
inline bool look_up_blocks(const Lookup& lookup, const std::uint8_t* codes, bool halves,
                           const PartView& part, std::int64_t at, float* out, std::int64_t count,
                           bool) {
    if (part.divisor < 16 || part.divisor % 2 != 0) return false;
    std::int64_t block = at / part.divisor;
    for (std::int64_t i = 0; i < count; ++block) {
        const std::int64_t rest = (block + 1) * part.divisor - at - i;
        const std::int64_t some = count - i < rest ? count - i : rest;
        look_up_scaled(lookup, codes + (halves ? i / 2 : i), halves, scale_at(part, block), out + i,
                       some);
        i += some;
    }
    return true;
}

#include "no_streams.hpp"
