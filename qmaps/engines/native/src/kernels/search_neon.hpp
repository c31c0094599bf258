// Search and look-up with NEON, 16 elements a group. Tables of up to 32 numbers lie in registers, as
// planes of bytes; of greater ones entries are loaded one by one.

#include "search_one.hpp"

inline constexpr std::int64_t kGroup = 16;  // elements whose codes fill a register

ALWAYS_INLINE inline uint32x4_t bits_of(float32x4_t value) { return vreinterpretq_u32_f32(value); }
ALWAYS_INLINE inline float32x4_t floats_of(uint32x4_t bits) { return vreinterpretq_f32_u32(bits); }

// Lower halves of all numbers of two registers, and upper ones.
ALWAYS_INLINE inline uint16x8_t lower_halves(uint32x4_t a, uint32x4_t b) {
    return vuzp1q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b));
}
ALWAYS_INLINE inline uint16x8_t upper_halves(float32x4_t a, float32x4_t b) {
    return vuzp2q_u16(vreinterpretq_u16_f32(a), vreinterpretq_u16_f32(b));
}
ALWAYS_INLINE inline uint8x16_t lower_bytes(uint16x8_t a, uint16x8_t b) {
    return vuzp1q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b));
}
ALWAYS_INLINE inline uint8x16_t bytes_of(const uint32x4_t (&number)[4]) {
    return lower_bytes(lower_halves(number[0], number[1]), lower_halves(number[2], number[3]));
}

// 16 floats of the planes of their bytes.
ALWAYS_INLINE inline void join(const uint8x16_t (&plane)[4], float32x4_t (&out)[4]) {
    const auto halves = [](uint8x16_t a) { return vreinterpretq_u16_u8(a); };
    const uint16x8_t low[2] = {halves(vzip1q_u8(plane[0], plane[1])),
                               halves(vzip2q_u8(plane[0], plane[1]))};
    const uint16x8_t high[2] = {halves(vzip1q_u8(plane[2], plane[3])),
                                halves(vzip2q_u8(plane[2], plane[3]))};
    for (int h = 0; h < 2; ++h) {
        out[2 * h] = vreinterpretq_f32_u16(vzip1q_u16(low[h], high[h]));
        out[2 * h + 1] = vreinterpretq_f32_u16(vzip2q_u16(low[h], high[h]));
    }
}

// Up to 16 and up to 32 floats.
struct Sixteen {
    uint8x16_t plane[4];
    template <class Plane>
    ALWAYS_INLINE explicit Sixteen(const Plane& planes) {
        for (int k = 0; k < 4; ++k) plane[k] = vld1q_u8(planes[k]);
    }
    ALWAYS_INLINE void floats(uint8x16_t code, float32x4_t (&out)[4]) const {
        uint8x16_t byte[4];
        for (int k = 0; k < 4; ++k) byte[k] = vqtbl1q_u8(plane[k], code);
        join(byte, out);
    }
    // Those of positive ones, turned negative where all bits of `negative` are set.
    ALWAYS_INLINE void signed_floats(uint8x16_t code, uint8x16_t negative, float32x4_t (&out)[4]) const {
        uint8x16_t byte[4];
        for (int k = 0; k < 4; ++k) byte[k] = vqtbl1q_u8(plane[k], code);
        byte[3] = vsliq_n_u8(byte[3], negative, 7);
        join(byte, out);
    }
};
struct ThirtyTwo {
    uint8x16x2_t plane[4];
    template <class Plane>
    ALWAYS_INLINE explicit ThirtyTwo(const Plane& planes) {
        for (int k = 0; k < 4; ++k) plane[k] = {{vld1q_u8(planes[k]), vld1q_u8(planes[k] + 16)}};
    }
    ALWAYS_INLINE void floats(uint8x16_t code, float32x4_t (&out)[4]) const {
        uint8x16_t byte[4];
        for (int k = 0; k < 4; ++k) byte[k] = vqtbl2q_u8(plane[k], code);
        join(byte, out);
    }
};

// Finders: `codes(value)` gives the codes of the next 16 values.

// The compiler must not take places out of registers, which takes an instruction for each.
ALWAYS_INLINE inline void in_memory(std::uint32_t (&place)[16]) { __asm__("" : "+m"(place)); }

// Upper halves of sums, for which compilers add first.
ALWAYS_INLINE inline uint16x8_t upper_sums(uint32x4_t a, uint32x4_t b, uint32x4_t c, uint32x4_t d) {
    uint16x8_t sums;
    __asm__("addhn %0.4h, %1.4s, %2.4s" : "=w"(sums) : "w"(a), "w"(b));
    __asm__("addhn2 %0.8h, %1.4s, %2.4s" : "+w"(sums) : "w"(c), "w"(d));
    return sums;
}

// Entries of a table by places in memory. Compilers would insert them one by one, which takes an
// address each.
ALWAYS_INLINE inline float32x4_t load_four(const float* table, const std::uint32_t* place) {
    float32x4_t a = {table[place[0]]}, b = {table[place[1]]};
    float32x4_t c = {table[place[2]]}, d = {table[place[3]]};
    __asm__("" : "+w"(a), "+w"(b), "+w"(c), "+w"(d));
    const float64x2_t low = vreinterpretq_f64_f32(vzip1q_f32(a, b));
    const float64x2_t high = vreinterpretq_f64_f32(vzip1q_f32(c, d));
    return vreinterpretq_f32_f64(vzip1q_f64(low, high));
}

// See Pieces.
template <bool kSigned>
struct PieceLimits {
    static constexpr int kLoose = kSigned ? 17 : 16;
    const std::uint32_t* table;
    ALWAYS_INLINE explicit PieceLimits(const Search& search) : table(search.pieces.entry.get()) {}
    ALWAYS_INLINE static uint32x4_t key(float32x4_t value) {
        const int32x4_t least = vdupq_n_s32(kLeastPiece);
        if constexpr (!kSigned)
            return vreinterpretq_u32_s32(vmaxq_s32(vreinterpretq_s32_f32(value), least));
        const int32x4_t magnitude = vreinterpretq_s32_f32(vabsq_f32(value));
        return veorq_u32(vreinterpretq_u32_s32(vmaxq_s32(magnitude, least)), vcltzq_f32(value));
    }
    ALWAYS_INLINE uint8x16_t codes(const float32x4_t (&value)[4]) const {
        alignas(16) std::uint32_t place[16];
        uint32x4_t rest[4], entry[4];
        for (int q = 0; q < 4; ++q) {
            const uint32x4_t its_key = key(value[q]);
            const uint32x4_t piece = vandq_u32(vshrq_n_u32(its_key, kLoose), vdupq_n_u32(kPieces - 1));
            vst1q_u32(place + 4 * q, piece);
            rest[q] = vandq_u32(its_key, vdupq_n_u32((1u << kLoose) - 1u));
        }
        in_memory(place);
        for (int q = 0; q < 4; ++q)
            entry[q] = bits_of(load_four(reinterpret_cast<const float*>(table), place + 4 * q));
        const auto code = [&](int q) ALWAYS_INLINE {
            const uint16x8_t upper = upper_sums(entry[q], rest[q], entry[q + 1], rest[q + 1]);
            return kLoose > 16 ? vshrq_n_u16(upper, kLoose > 16 ? kLoose - 16 : 1) : upper;
        };
        return lower_bytes(code(0), code(2));
    }
};

// See EvenLimits.
struct EvenBitsLimits {
    int32x4_t low, high, shift;
    ALWAYS_INLINE explicit EvenBitsLimits(const Search& search)
        : low(vdupq_n_s32(search.even.low)), high(vdupq_n_s32(search.even.high)),
          shift(vdupq_n_s32(-search.even.shift)) {}
    ALWAYS_INLINE uint8x16_t codes(const float32x4_t (&value)[4]) const {
        uint32x4_t code[4];
        for (int q = 0; q < 4; ++q) {
            const int32x4_t held = vminq_s32(vmaxq_s32(vreinterpretq_s32_f32(value[q]), low), high);
            code[q] = vreinterpretq_u32_s32(vshlq_s32(vsubq_s32(held, low), shift));
        }
        return bytes_of(code);
    }
};

// Random numbers, as uniform_of has them, of draws in upper halves: half a draw more, as 32 bits
// after the point.
struct Uniforms {
    uint32x4_t drawn = vdupq_n_u32(0xFFFF0000u), half = vdupq_n_u32(0x8000u);
    ALWAYS_INLINE float32x4_t of(uint32x4_t words) const {
        // Compilers make two instructions of one that selects between numbers they know.
        __asm__("bif %0.16b, %1.16b, %2.16b" : "+w"(words) : "w"(half), "w"(drawn));
        return vcvtq_n_f32_u32(words, 32);
    }
};

// Those of the next four values, of draws as draws_of leaves them.
struct StoredDraws {
    const std::uint16_t* draws;
    Uniforms uniforms;
    ALWAYS_INLINE explicit StoredDraws(const std::uint16_t* from) : draws(from) {}
    template <bool>
    ALWAYS_INLINE float32x4_t next(float32x4_t) {
        const uint16x4_t some = vld1_u16(draws);
        draws += 4;
        return uniforms.of(vshll_n_u16(some, 16));
    }
};

// Draws that are spread over steps, from an element on; those of negative values are turned round.
struct SpreadDraws {
    uint32x4_t words, four;
    Uniforms uniforms;
    ALWAYS_INLINE explicit SpreadDraws(std::uint32_t word) : four(vdupq_n_u32(4 * kPerElement)) {
        alignas(16) static constexpr std::uint32_t kAhead[4] = {0, kPerElement, 2 * kPerElement,
                                                                3 * kPerElement};
        words = vaddq_u32(vdupq_n_u32(word), vld1q_u32(kAhead));
    }
    template <bool kSigned>
    ALWAYS_INLINE float32x4_t next(float32x4_t value) {
        const uint32x4_t plain = words;
        words = vaddq_u32(words, four);
        __asm__("" : "+w"(words));  // one register for what is added, not four
        return uniforms.of(kSigned ? veorq_u32(plain, vcltzq_f32(value)) : plain);
    }
};

// All ones where a value `over` its lower neighbour is rounded up; see rounds_up.
template <bool kBent>
ALWAYS_INLINE inline uint32x4_t up_of(float32x4_t random, float32x4_t over, float32x4_t gap,
                                      float32x4_t bend) {
    if constexpr (kBent) {
        const float32x4_t bent = vmulq_f32(over, bend);
        over = vaddq_f32(over, bent);
        gap = vaddq_f32(gap, bent);
    }
    return vcltq_f32(vmulq_f32(random, gap), over);
}

inline bool in_upper_halves(const Lookup& lookup) {
    return lookup.shift >= 16 && (lookup.first & 0xFFFFu) == 0;
}

// Codes rounded by chance where the bits of values are evenly spaced, in their upper halves alone: those
// of the lower neighbour are the first of a value's own.
template <bool kBent, class Draws>
struct RaisedBits {
    Draws draws;
    float32x4_t lowest, highest, bend;
    uint32x4_t step, kept;
    int16x8_t shift;
    uint8x16_t first;
    ALWAYS_INLINE RaisedBits(const Codebook& codebook, const Draws& drawn)
        : draws(drawn), lowest(vdupq_n_f32(codebook.values.value[0])),
          highest(vdupq_n_f32(codebook.values.value[codebook.size - 1])),
          bend(vdupq_n_f32(codebook.bend)), step(vdupq_n_u32(1u << codebook.values.shift)),
          kept(vdupq_n_u32(0u - (1u << codebook.values.shift))),
          shift(vdupq_n_s16(static_cast<std::int16_t>(16 - codebook.values.shift))),
          first(vdupq_n_u8(static_cast<std::uint8_t>(codebook.values.first >> codebook.values.shift))) {}
    ALWAYS_INLINE uint8x16_t codes(const float32x4_t (&value)[4]) {
        float32x4_t held[4];
        uint32x4_t up[4];
        for (int q = 0; q < 4; ++q) {
            held[q] = vmaxq_f32(vminq_f32(value[q], highest), lowest);
            const uint32x4_t bits = vandq_u32(bits_of(held[q]), kept);
            const float32x4_t low = floats_of(bits), high = floats_of(vaddq_u32(bits, step));
            up[q] = up_of<kBent>(draws.template next<false>(held[q]), vsubq_f32(held[q], low),
                                 vsubq_f32(high, low), bend);
        }
        const auto number = [&](int q) ALWAYS_INLINE {
            return vshlq_u16(upper_halves(held[q], held[q + 1]), shift);
        };
        return vsubq_u8(vsubq_u8(lower_bytes(number(0), number(2)), first), bytes_of(up));
    }
};

ALWAYS_INLINE inline uint16x8_t not_negative(uint16x8_t half) {
    return vreinterpretq_u16_s16(vmaxq_s16(vreinterpretq_s16_u16(half), vdupq_n_s16(0)));
}

// The same of few values; see Folded.
template <bool kSigned, bool kBent, class Draws>
struct RaisedFew {
    Draws draws;
    uint8x16x4_t next;
    Sixteen magnitudes, gaps;
    uint16x8_t first;
    int16x8_t shift;
    uint8x16_t last, zero, back = vdupq_n_u8(255);
    float32x4_t bend;
    ALWAYS_INLINE RaisedFew(const Codebook& codebook, const Draws& drawn)
        : draws(drawn), next(vld1q_u8_x4(codebook.folded.next)),
          magnitudes(codebook.folded.magnitude), gaps(codebook.folded.gap),
          first(vdupq_n_u16(codebook.folded.first)),
          shift(vdupq_n_s16(static_cast<std::int16_t>(-codebook.folded.shift))),
          last(vdupq_n_u8(codebook.folded.last)), zero(vdupq_n_u8(codebook.folded.zero)),
          bend(vdupq_n_f32(codebook.bend)) {}
    ALWAYS_INLINE uint8x16_t codes(const float32x4_t (&value)[4]) {
        const auto bucket = [&](uint16x8_t upper) ALWAYS_INLINE {
            const uint16x8_t held = kSigned ? vandq_u16(upper, vdupq_n_u16(0x7FFF)) : not_negative(upper);
            return vshlq_u16(vqsubq_u16(held, first), shift);
        };
        const uint16x8_t upper[2] = {upper_halves(value[0], value[1]), upper_halves(value[2], value[3])};
        const uint8x16_t guess = vqtbl4q_u8(next, lower_bytes(bucket(upper[0]), bucket(upper[1])));
        float32x4_t limit[4], low[4], gap[4];
        uint32x4_t up[4];
        magnitudes.floats(guess, limit);
        for (int q = 0; q < 4; ++q)
            up[q] = kSigned ? vcageq_f32(value[q], limit[q]) : vcgeq_f32(value[q], limit[q]);
        const uint8x16_t after = vminq_u8(vsubq_u8(guess, bytes_of(up)), last);
        gaps.floats(after, gap);
        const uint8x16_t place = vaddq_u8(after, back);
        uint8x16_t code = place;
        if constexpr (kSigned) {
            // Below zero the lower neighbour is the one of greater magnitude.
            const auto signs = [](uint16x8_t half) ALWAYS_INLINE {
                return vreinterpretq_u16_s16(vshrq_n_s16(vreinterpretq_s16_u16(half), 15));
            };
            const uint8x16_t negative = lower_bytes(signs(upper[0]), signs(upper[1]));
            magnitudes.signed_floats(vsubq_u8(place, negative), negative, low);
            code = vaddq_u8(veorq_u8(place, negative), zero);
        } else {
            magnitudes.floats(place, low);
        }
        for (int q = 0; q < 4; ++q)
            up[q] = up_of<kBent>(draws.template next<kSigned>(value[q]), vsubq_f32(value[q], low[q]),
                                 gap[q], bend);
        return vsubq_u8(code, bytes_of(up));
    }
};

// Call run(i, count, scale) for every block of elements; `begin` of the first one's come before.
template <class Scale, class Run>
ALWAYS_INLINE inline void in_blocks(std::int64_t block, std::int64_t begin, std::int64_t count,
                                    const Scale& scale, const Run& run) {
    std::int64_t number = begin / block, rest = block - begin % block;
    for (std::int64_t i = 0; i < count; ++number) {
        const std::int64_t some = count - i < rest ? count - i : rest;
        run(i, some, scale(number));
        i += some;
        rest = block;
    }
}

// Codes of `count` values that lie between the codebook's ends, or, with kDivides, of values under the
// divisors of their blocks, of whole groups.
template <bool kDivides, class Find>
inline void find_codes(Find find, const float* x, const float* divisor, std::int64_t block,
                       std::int64_t begin, std::uint8_t* codes, std::int64_t count) {
    in_blocks(kDivides ? block : count + 1, begin, count,
              [&](std::int64_t number) ALWAYS_INLINE { return kDivides ? divisor[number] : 1.0f; },
              [&](std::int64_t i, std::int64_t some, float its_scale) ALWAYS_INLINE {
        const float32x4_t scale = vdupq_n_f32(its_scale);
        const auto group = [&](const float* from) ALWAYS_INLINE {
            float32x4_t value[4];
            for (int q = 0; q < 4; ++q) {
                value[q] = vld1q_f32(from + 4 * q);
                if constexpr (kDivides) value[q] = vdivq_f32(value[q], scale);
            }
            return find.codes(value);
        };
        const float* from = x + i;
        std::uint8_t* to = codes + i;
        for (std::int64_t groups = some / kGroup; groups > 0; --groups) {
            vst1q_u8(to, group(from));
            from += kGroup;
            to += kGroup;
        }
        const auto rest = static_cast<std::size_t>(some % kGroup);
        if (rest == 0) return;
        float last[kGroup] = {};
        std::uint8_t last_codes[kGroup];
        __builtin_memcpy(last, from, rest * sizeof(float));
        vst1q_u8(last_codes, group(last));
        __builtin_memcpy(to, last_codes, rest);
    });
}

// Nearest codes, if there is a way in one go.
template <bool kDivides>
inline bool search_group(const Search& search, const float* x, const float* divisor,
                         std::int64_t block, std::uint8_t* codes, std::int64_t count) {
    if (search.even.shift) {
        find_codes<kDivides>(EvenBitsLimits(search), x, divisor, block, 0, codes, count);
    } else if (!search.pieces.entry) {
        return false;
    } else if (search.pieces.loose == 17) {
        find_codes<kDivides>(PieceLimits<true>(search), x, divisor, block, 0, codes, count);
    } else {
        find_codes<kDivides>(PieceLimits<false>(search), x, divisor, block, 0, codes, count);
    }
    return true;
}

inline void search_codes(const Search& search, const float* n, std::uint8_t* codes,
                         std::int64_t count, Scratch&) {
    if (search_group<false>(search, n, nullptr, 0, codes, count)) return;
    for (std::int64_t i = 0; i < count; ++i) codes[i] = search_one(search, n[i]);
}

// Codes of a tile rounded by chance, if there is a way in one go.
template <bool kDivides, class Draws>
inline bool round_tile(const Codebook& codebook, const Draws& draws, const float* x,
                       const float* divisor, std::int64_t block, std::int64_t begin,
                       std::uint8_t* codes, std::int64_t count) {
    const auto with = [&]<class Find>() ALWAYS_INLINE {
        find_codes<kDivides>(Find(codebook, draws), x, divisor, block, begin, codes, count);
        return true;
    };
    const bool bent = codebook.bend != 0.0f;
    if (in_upper_halves(codebook.values))
        return bent ? with.template operator()<RaisedBits<true, Draws>>()
                    : with.template operator()<RaisedBits<false, Draws>>();
    if (codebook.folded.last == 0) return false;
    if (codebook.folded.zero > 0)
        return bent ? with.template operator()<RaisedFew<true, true, Draws>>()
                    : with.template operator()<RaisedFew<true, false, Draws>>();
    return bent ? with.template operator()<RaisedFew<false, true, Draws>>()
                : with.template operator()<RaisedFew<false, false, Draws>>();
}

// The same of all values; the first is element `first` of the tensor.
template <bool kDivides>
inline bool round_group(const Codec& codec, const float* x, const float* divisor,
                        std::int64_t block, std::int64_t first, std::uint8_t* codes,
                        std::int64_t count, Scratch& scratch) {
    const Codebook& codebook = *codec.codebook;
    if (!in_upper_halves(codebook.values) && codebook.folded.last == 0) return false;
    for (std::int64_t i = 0; i < count; i += kTile) {
        const std::int64_t some = count - i < kTile ? count - i : kTile;
        if (codec.noise.key1 & kSpread) {
            const SpreadDraws draws(spread_word_at(codec.noise, first + i));
            round_tile<kDivides>(codebook, draws, x + i, divisor, block, i, codes + i, some);
        } else {
            const StoredDraws draws(draws_of(codec.noise, first + i, some, scratch));
            round_tile<kDivides>(codebook, draws, x + i, divisor, block, i, codes + i, some);
        }
    }
    return true;
}

// Codes that are rounded stochastically; the first value is element `first` of the tensor.
inline void round_codes(const Codec& codec, const float* n, std::int64_t first,
                        std::uint8_t* codes, std::int64_t count, Scratch& scratch) {
    const Codebook& codebook = *codec.codebook;
    const float* value = codebook.values.value;
    const float lowest = value[0], highest = value[codebook.size - 1];
    const bool few = in_upper_halves(codebook.values) || codebook.folded.last > 0;
    if (!few) search_codes(codebook.stochastic, n, codes, count, scratch);
    for (std::int64_t i = 0; i < count; i += kTile) {
        const std::int64_t some = count - i < kTile ? count - i : kTile;
        if (few) {  // of what lies beyond the codebook
            for (std::int64_t j = 0; j < some; ++j) {
                const float below = n[i + j] < highest ? n[i + j] : highest;
                scratch.low[j] = below > lowest ? below : lowest;
            }
            round_group<false>(codec, scratch.low, nullptr, 0, first + i, codes + i, some, scratch);
            continue;
        }
        const std::uint16_t* draws = draws_of(codec.noise, first + i, some, scratch);
        for (std::int64_t j = 0; j < some; ++j) {
            scratch.low[j] = value[codes[i + j]];
            scratch.high[j] = value[codes[i + j] + 1];
        }
        raise(codes + i, codebook.size - 1, n + i, scratch.low, scratch.high, draws,
              mirror_of(codec.noise.key1), some, codebook.bend);
    }
}

// Codes of x / divisor, block by block, where that can be done in one go. The first value begins
// a block.
inline bool encode_divided(const Codec& codec, const float* x, const float* divisor,
                           std::int64_t block, std::int64_t first, std::uint8_t* codes,
                           std::int64_t count, Scratch& scratch) {
    if (block % kGroup != 0) return false;
    if (codec.stochastic)
        return round_group<true>(codec, x, divisor, block, first, codes, count, scratch);
    return search_group<true>(codec.codebook->nearest, x, divisor, block, codes, count);
}

// Values of the 16 codes at a place; of any codes.

struct FewValues {
    ThirtyTwo values;
    ALWAYS_INLINE explicit FewValues(const Lookup& lookup) : values(lookup.plane) {}
    ALWAYS_INLINE void floats(const std::uint8_t* codes, float32x4_t (&out)[4]) const {
        values.floats(vld1q_u8(codes), out);
    }
};

// Codes of half a byte each.
struct HalfValues {
    static constexpr std::int64_t kCodes = 2;  // of a byte
    Sixteen values;
    ALWAYS_INLINE explicit HalfValues(const Lookup& lookup) : values(lookup.plane) {}
    ALWAYS_INLINE void floats(const std::uint8_t* codes, float32x4_t (&out)[4]) const {
        const uint8x8_t pairs = vld1_u8(codes);
        const uint8x8_t low = vand_u8(pairs, vdup_n_u8(15)), high = vshr_n_u8(pairs, 4);
        values.floats(vcombine_u8(vzip1_u8(low, high), vzip2_u8(low, high)), out);
    }
};

// Where the bits of values are evenly spaced, in their upper halves alone.
struct EvenBits {
    uint16x8_t first;
    uint8x8_t step;
    ALWAYS_INLINE explicit EvenBits(const Lookup& lookup)
        : first(vdupq_n_u16(static_cast<std::uint16_t>(lookup.first >> 16))),
          step(vdup_n_u8(static_cast<std::uint8_t>(1u << (lookup.shift - 16)))) {}
    ALWAYS_INLINE void floats(const std::uint8_t* codes, float32x4_t (&out)[4]) const {
        const uint8x16_t code = vld1q_u8(codes);
        const uint16x8_t upper[2] = {vaddq_u16(first, vmull_u8(vget_low_u8(code), step)),
                                     vaddq_u16(first, vmull_u8(vget_high_u8(code), step))};
        for (int h = 0; h < 2; ++h) {
            out[2 * h] = floats_of(vshll_n_u16(vget_low_u16(upper[h]), 16));
            out[2 * h + 1] = floats_of(vshll_high_n_u16(upper[h], 16));
        }
    }
};

// Up to 255 codes of values that are mirrored about zero, in two rounds, each of which has half of
// the magnitudes' bytes in registers; halves of floats lie in the place of these meanwhile.
struct MirroredHalves {
    uint8x16x4_t low[2], high[2];
    uint8x16_t zero;
    ALWAYS_INLINE MirroredHalves(const Lookup& lookup, int half)
        : zero(vdupq_n_u8(static_cast<std::uint8_t>(lookup.zero))) {
        for (int k = 0; k < 2; ++k) {
            const std::uint8_t* from = lookup.plane[2 * half + k] + lookup.zero;
            low[k] = vld1q_u8_x4(from);
            high[k] = vld1q_u8_x4(from + 64);
        }
    }
    // With `kUpper` their upper halves, with the sign.
    template <bool kUpper>
    ALWAYS_INLINE void halves(const std::uint8_t* codes, uint16x8_t (&out)[2]) const {
        const uint8x16_t code = vld1q_u8(codes);
        const uint8x16_t place = vminq_u8(vabdq_u8(code, zero), vdupq_n_u8(127));
        const uint8x16_t beyond = vsubq_u8(place, vdupq_n_u8(64));
        uint8x16_t byte[2];
        for (int k = 0; k < 2; ++k)
            byte[k] = vqtbx4q_u8(vqtbl4q_u8(low[k], place), high[k], beyond);
        if constexpr (kUpper) byte[1] = vsliq_n_u8(byte[1], vcltq_u8(code, zero), 7);
        out[0] = vreinterpretq_u16_u8(vzip1q_u8(byte[0], byte[1]));
        out[1] = vreinterpretq_u16_u8(vzip2q_u8(byte[0], byte[1]));
    }
};

struct ManyValues {
    const float* value;
    ALWAYS_INLINE explicit ManyValues(const Lookup& lookup) : value(lookup.value) {}
    ALWAYS_INLINE void floats(const std::uint8_t* codes, float32x4_t (&out)[4]) const {
        for (int q = 0; q < 4; ++q) {
            const std::uint32_t place[4] = {codes[4 * q], codes[4 * q + 1], codes[4 * q + 2],
                                            codes[4 * q + 3]};
            out[q] = load_four(value, place);
        }
    }
};

// Call group(codes, scales, out) for every 16 elements of each block. kCodes: of a byte.
template <int kCodes, class Scale, class Group>
ALWAYS_INLINE inline void in_groups(const Lookup& lookup, const std::uint8_t* codes, const Scale& scale,
                                    std::int64_t block, std::int64_t begin, float* out,
                                    std::int64_t count, const Group& group) {
    in_blocks(block, begin, count, scale,
              [&](std::int64_t i, std::int64_t some, float its_scale) ALWAYS_INLINE {
        const float32x4_t scales = vdupq_n_f32(its_scale);
        const std::uint8_t* from = codes + i / kCodes;
        float* to = out + i;
        for (std::int64_t groups = some / kGroup; groups > 0; --groups) {
            group(from, scales, to);
            from += kGroup / kCodes;
            to += kGroup;
        }
        for (std::int64_t j = i + some / kGroup * kGroup; j < i + some; ++j) {
            const int code = kCodes == 2 ? codes[j / 2] >> (j % 2 * 4) & 15 : codes[j];
            out[j] = lookup.value[code] * its_scale;
        }
    });
}

ALWAYS_INLINE inline void store_products(const float32x4_t (&value)[4], float32x4_t scales, float* out) {
    for (int q = 0; q < 4; ++q) vst1q_f32(out + 4 * q, vmulq_f32(value[q], scales));
}

// Values times the scale of their block.
template <class Values, int kCodes, class Scale>
inline void look_up_from(const Lookup& lookup, const std::uint8_t* codes, const Scale& scale,
                         std::int64_t block, std::int64_t begin, float* out, std::int64_t count) {
    const Values values(lookup);
    in_groups<kCodes>(lookup, codes, scale, block, begin, out, count,
                      [&](const std::uint8_t* from, float32x4_t scales, float* to) ALWAYS_INLINE {
        float32x4_t value[4];
        values.floats(from, value);
        store_products(value, scales, to);
    });
}

template <class Scale>
inline void look_up_mirrored(const Lookup& lookup, const std::uint8_t* codes, const Scale& scale,
                             std::int64_t block, std::int64_t begin, float* out, std::int64_t count) {
    const MirroredHalves lower(lookup, 0);
    const std::uint8_t* from = codes;
    float* to = out;
    for (std::int64_t groups = count / kGroup; groups > 0; --groups) {
        uint16x8_t half[2];
        lower.halves<false>(from, half);
        vst1q_f32(to, vreinterpretq_f32_u16(half[0]));
        vst1q_f32(to + 4, vreinterpretq_f32_u16(half[1]));
        from += kGroup;
        to += kGroup;
    }
    const MirroredHalves upper(lookup, 1);
    in_groups<1>(lookup, codes, scale, block, begin, out, count,
                 [&](const std::uint8_t* some, float32x4_t scales, float* values) ALWAYS_INLINE {
        uint16x8_t half[2];
        upper.halves<true>(some, half);
        float32x4_t value[4];
        for (int h = 0; h < 2; ++h) {
            const uint16x8_t low = vreinterpretq_u16_f32(vld1q_f32(values + 4 * h));
            value[2 * h] = vreinterpretq_f32_u16(vzip1q_u16(low, half[h]));
            value[2 * h + 1] = vreinterpretq_f32_u16(vzip2q_u16(low, half[h]));
        }
        store_products(value, scales, values);
    });
}

template <class Scale>
inline void look_up_scaled(const Lookup& lookup, const std::uint8_t* codes, bool halves,
                           const Scale& scale, std::int64_t block, std::int64_t begin, float* out,
                           std::int64_t count) {
    // Groups are those of both rounds.
    const bool whole = block % kGroup == 0 && begin % kGroup == 0;
    const auto chosen = halves                      ? look_up_from<HalfValues, 2, Scale>
                        : in_upper_halves(lookup)   ? look_up_from<EvenBits, 1, Scale>
                        : whole && lookup.zero > 0  ? look_up_mirrored<Scale>
                        : lookup.codes <= 32        ? look_up_from<FewValues, 1, Scale>
                                                    : look_up_from<ManyValues, 1, Scale>;
    chosen(lookup, codes, scale, block, begin, out, count);
}

// Codes of 4 bits are looked up as they are stored.
inline constexpr bool kReadsHalves = true;

inline void look_up(const Lookup& lookup, const std::uint8_t* codes, bool halves, float* out,
                    std::int64_t count) {
    const auto one = [](std::int64_t) { return 1.0f; };
    look_up_scaled(lookup, codes, halves, one, std::int64_t{1} << 62, 0, out, count);
}

// Values times the scale of their block, where that can be done in one go; at: of the first.
inline bool look_up_blocks(const Lookup& lookup, const std::uint8_t* codes, bool halves,
                           const PartView& part, std::int64_t at, float* out, std::int64_t count,
                           bool) {
    if (part.divisor < kGroup || part.divisor % 2 != 0) return false;
    const auto scale = [&](std::int64_t block) ALWAYS_INLINE { return scale_at(part, block); };
    look_up_scaled(lookup, codes, halves, scale, part.divisor, at, out, count);
    return true;
}

#include "no_streams.hpp"
