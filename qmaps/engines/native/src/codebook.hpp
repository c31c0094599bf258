// Tables made once from a codebook, in the forms that the kernels search and look up.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "generated/enumerations.hpp"

namespace qmaps {

inline constexpr int kMaxCodes = 256;

// The number of limits below a value: `limit` is ascending and padded with infinity.
//
// A guess, from the value's upper 16 bits, that the number is at most `rounds` above. A bucket is
// an eighth of a binade of the magnitude; 256 of them reach down to 2^-31. It has 16 cells, and
// each of them may raise the guess by one. All limits lie within (-1, 1), and values between -1
// and 1, or at infinity.
struct Buckets {
    enum class Kind {
        kUnsigned,  // no limit is negative
        kMirrored,  // negative values take `mirror` minus the guess of their magnitude, or 0
        kSplit,     // half of the buckets, down to 2^-15, are for negative values
    };
    alignas(64) std::uint8_t base[256];       // the guess in the first cell
    alignas(64) std::uint8_t rises_low[256];  // bit f: one more from cell f on
    alignas(64) std::uint8_t rises_high[256];
    Kind kind = Kind::kUnsigned;
    int rounds = 0;  // 0: there is no such guess
    bool flat = false;  // no cell raises the guess
    std::uint8_t mirror = 0;
};

// The same number by one look-up. Values from 2^-31 on fall into pieces by their sign, 5 bits of the
// exponent and 6 of the mantissa, or, where no limit is negative, without the sign and by 7; smaller
// ones count as 2^-31. No piece holds two limits. An entry is the number at the piece's lower end,
// above `loose` bits to which those of the value are added: they carry if the value is above the limit.
struct Pieces {
    std::unique_ptr<std::uint32_t[]> entry;  // kPieces; null: there is no such table
    int loose = 0;  // bits of a float that its piece does not know: 17, or 16 without the sign
};

inline constexpr int kPieces = 4096;
inline constexpr std::int32_t kLeastPiece = 96 << 23;

// Ascending like the values; the piece is `key >> loose & (kPieces - 1)`. -0 counts as 0.
static inline std::uint32_t piece_key(std::int32_t bits, bool has_sign) {
    if (bits == INT32_MIN) bits = 0;
    const std::int32_t magnitude = has_sign ? bits & 0x7FFFFFFF : bits;
    const std::int32_t key = magnitude > kLeastPiece ? magnitude : kLeastPiece;
    return static_cast<std::uint32_t>(has_sign ? key ^ (bits >> 31) : key);
}

// Where limits are positive, and their bits evenly spaced, a value's bits as a signed number, held
// between `low` and `high`, tell how many are below: those above `low`, shifted. `shift` is not 0 then.
struct EvenLimits {
    std::int32_t low = 0, high = 0;
    int shift = 0;
};

static inline std::uint8_t even_number(const EvenLimits& even, std::int32_t bits) {
    const std::int32_t above = bits > even.low ? bits : even.low;
    const std::int32_t held = above < even.high ? above : even.high;
    return static_cast<std::uint8_t>((held - even.low) >> even.shift);
}

// For stochastic rounding to few values, unsigned or mirrored about zero, so that magnitudes tell: up
// to 16 of them. The upper halves of numbers, less `first` and shifted, fall into 64 buckets, of which none
// holds two magnitudes but zero. `next` is the place of the magnitude above a bucket's lower end, which
// numbers of this bucket reach or not. The last one is at most `last`: numbers that reach it lie a whole gap
// above the one before, and are always rounded up to it.
struct Folded {
    alignas(16) std::uint8_t next[64] = {};
    alignas(16) std::uint8_t magnitude[4][16] = {};  // byte k of each
    alignas(16) std::uint8_t gap[4][16] = {};        // of what lies between each and the one before
    std::uint16_t first = 0;
    int shift = 0;
    std::uint8_t last = 0;  // 0: there is no such table
    std::uint8_t zero = 0;  // the code of zero where there are negative values, else 0
};

// `first` answers by the upper 16 bits of the value; `level` are the nodes of a binary search over
// those 16 bits. Such answers are lower bounds: as many as `repeats` limits may share their upper
// 16 bits with the value, and are compared in full.
struct alignas(64) Search {
    float limit[2 * kMaxCodes];
    std::uint8_t plane[4][kMaxCodes];  // byte k of each limit, padded with NaN
    // Node tables: bit l of an index is the outcome at level l, so that a node of level l is found
    // with the l outcomes so far, whatever lies in the register's other bits.
    std::uint16_t level[8][128];
    float few[32];  // the first limits, padded with NaN
    float tree[4][8];  // the nodes of a binary search over the first 15, level by level
    int count = 0;
    int repeats = 1;
    int steps = 1;  // halvings that tell one of 0 to `repeats` apart
    int levels = 8;  // of the binary search that are needed for `count` limits
    Buckets buckets;
    Pieces pieces;
    EvenLimits even;
    std::unique_ptr<std::uint8_t[]> first;
};

// Floats by their codes, and one more, so that each has one after it.
//
// Where all 2^bits values are positive, and the bits of neighbours differ by 2^shift, those of a code
// are `first + (code << shift)`: `shift` is not 0 then.
struct alignas(64) Lookup {
    float value[kMaxCodes + 1];
    alignas(64) std::uint8_t plane[4][kMaxCodes];
    std::uint32_t first = 0;
    int shift = 0;
    int codes = kMaxCodes;  // of the codebook's width
    int zero = 0;  // code of zero where more than 16 values on each side of it mirror each other; else 0
};

// The same two for more codes than a byte tells apart.
//
// Where limits are evenly spaced, the whole part of value * slope + offset, held between 0 and `top`,
// is the number of limits below the value, or one less: `slope` is not 0 then.
struct WideSearch {
    std::unique_ptr<float[]> limit;
    std::unique_ptr<std::uint16_t[]> first;
    int steps = 1;
    float slope = 0.0f, offset = 0.0f, top = 0.0f;
};

static inline int even_guess(float value, float slope, float offset, float top) {
    const float place = value * slope + offset;
    const float held = place < top ? place : top;  // NaN too takes the last
    return static_cast<int>(held > 0.0f ? held : 0.0f);
}

static inline int even_guess(const WideSearch& search, float value) {
    return even_guess(value, search.slope, search.offset, search.top);
}

// Where values are evenly spaced, that of a code is `place * coarse + place * fine`, place being the
// code, at most `last`, plus `first`: `coarse` is not 0 then. Few bits of `coarse` make its product
// exact, and `fine` is the rest of the spacing, so that one sum rounds.
struct EvenValues {
    float first = 0.0f, coarse = 0.0f, fine = 0.0f;
    int last = 0;
};

static inline float even_value(const EvenValues& values, int code) {
    const int held = code < values.last ? code : values.last;
    const float place = static_cast<float>(held) + values.first;
    return place * values.coarse + place * values.fine;
}

struct WideCodebook {
    std::unique_ptr<float[]> value;  // of every code, and one more
    EvenValues even;
    WideSearch nearest;
    WideSearch stochastic;
    std::unique_ptr<std::uint16_t[]> lowest;  // as in Codebook
    // The 16-bit format whose finite numbers the values are, with its rounding, so that codes can be
    // computed (see kernels/half_codes.hpp); float32 for others.
    Dtype format = Dtype::kFloat32;
    std::uint16_t zero = 0, most = 0;
};

struct Codebook {
    // values: ascending; limits: the largest float nearer to each lower neighbour; below: the
    // largest float below each value but the first. For few uses, `brief` leaves out
    // the buckets, which are dear to find.
    Codebook(const std::vector<float>& values, const std::vector<float>& limits,
             const std::vector<float>& below, int bits, bool brief = false);

    int bits;
    int size;
    bool in_log = false;  // stochastic rounding in log2 ranges is between positions, not values
    float bend = 0.0f;    // of stochastic rounding; see qmaps.maps.base.Map.bend
    std::unique_ptr<WideCodebook> wide;  // above 8 bits; then the others are empty
    Search nearest;     // code of the nearest value
    Search stochastic;  // code of the lower of the two neighbours
    Lookup values;
    Folded folded;
    std::unique_ptr<std::uint8_t[]> lowest;  // of equal values' codes; null: there are none
};

// Ascending unsigned order of floats by their upper 16 bits.
inline std::uint16_t ordered_key(std::uint32_t bits) {
    const std::uint32_t key = bits >> 16;
    return static_cast<std::uint16_t>(key & 0x8000u ? ~key : key | 0x8000u);
}

}  // namespace qmaps
