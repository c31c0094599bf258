// Eight elements of a thread to and from memory: in wide accesses where all are there and the
// address allows, else one by one.
#pragma once

#include "language.cuh"

namespace qmaps {

struct Bf16 {
    std::uint16_t bits;
};
struct F16 {
    std::uint16_t bits;
};

QMAPS_INLINE float to_float(float value) { return value; }
QMAPS_INLINE float to_float(Bf16 value) { return from_bf16(value.bits); }
QMAPS_INLINE float to_float(F16 value) { return from_f16(value.bits); }

QMAPS_INLINE void from_float(float value, float& to) { to = value; }
QMAPS_INLINE void from_float(float value, Bf16& to) { to.bits = to_bf16(value); }
QMAPS_INLINE void from_float(float value, F16& to) { to.bits = to_f16(value); }

// Words that are read and written at once.
template <int kWords>
struct alignas(4 * kWords) Words {
    std::uint32_t word[kWords];
};

// Two halves in a word. Devices round as `from_float` does, but have a NaN of their own.
QMAPS_INLINE std::uint32_t pair_of(float low, float high, Bf16) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    std::uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return to_bf16(low) | static_cast<std::uint32_t>(to_bf16(high)) << 16;
#endif
}
QMAPS_INLINE std::uint32_t pair_of(float low, float high, F16) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    std::uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return to_f16(low) | static_cast<std::uint32_t>(to_f16(high)) << 16;
#endif
}

QMAPS_INLINE void from_bits(std::uint32_t bits, float& to) { to = float_of(bits); }
QMAPS_INLINE void from_bits(std::uint32_t bits, Bf16& to) {
    to.bits = static_cast<std::uint16_t>(bits);
}
QMAPS_INLINE void from_bits(std::uint32_t bits, F16& to) {
    to.bits = static_cast<std::uint16_t>(bits);
}

// Addresses that come out of memory might be of any kind; those of tensors are not.
template <class T>
QMAPS_INLINE T* global(T* address) {
#if defined(__CUDACC__)
    __builtin_assume(__isGlobal(address));
#endif
    return address;
}

QMAPS_INLINE bool aligned(const void* address, int bytes) {
    return reinterpret_cast<std::uintptr_t>(address) % static_cast<unsigned>(bytes) == 0;
}

QMAPS_INLINE bool is_wide(const void* address, int count, int bytes) {
    return count == kWhole || (count == kUnit && aligned(address, bytes));
}

// `count` elements, the others 0; kWhole where all are there and the address is known to allow it.
template <class T>
QMAPS_INLINE void load_unit(const T* address, int count, float* to) {
    const T* from = global(address);
    constexpr int kBits = 8 * sizeof(T), kPieces = kUnit * sizeof(T) / 16;
    if (is_wide(from, count, 16)) {
        Words<4> piece[kPieces];
        for (int k = 0; k < kPieces; ++k) piece[k] = reinterpret_cast<const Words<4>*>(from)[k];
        for (int i = 0; i < kUnit; ++i) {
            const int bit = i * kBits;
            T value;
            from_bits(piece[bit / 128].word[bit % 128 / 32] >> bit % 32, value);
            to[i] = to_float(value);
        }
        return;
    }
    for (int i = 0; i < kUnit; ++i) to[i] = i < count ? to_float(from[i]) : 0.0f;
}

template <class T>
QMAPS_INLINE void store_unit(const float* from, T* address, int count) {
    T* to = global(address);
    constexpr int kPieces = kUnit * sizeof(T) / 16;
    if (is_wide(to, count, 16)) {
        Words<4> piece[kPieces];
        for (int i = 0; i < 4 * kPieces; ++i) {
            std::uint32_t& word = piece[i / 4].word[i % 4];
            if constexpr (sizeof(T) == 4)
                word = bits_of(from[i]);
            else
                word = pair_of(from[2 * i], from[2 * i + 1], T{});
        }
        for (int k = 0; k < kPieces; ++k) reinterpret_cast<Words<4>*>(to)[k] = piece[k];
        return;
    }
    for (int i = 0; i < kUnit; ++i)
        if (i < count) from_float(from[i], to[i]);
}

// The same of integers of 1 or 2 bytes.
template <class R>
QMAPS_INLINE void load_remainders(const R* address, int count, R* to) {
    const R* from = global(address);
    constexpr int kBits = 8 * sizeof(R);
    if (is_wide(from, count, kUnit * sizeof(R))) {
        const Words<kBits / 4> piece = *reinterpret_cast<const Words<kBits / 4>*>(from);
        for (int i = 0; i < kUnit; ++i)
            to[i] = static_cast<R>(piece.word[i * kBits / 32] >> i * kBits % 32);
        return;
    }
    for (int i = 0; i < kUnit; ++i) to[i] = i < count ? from[i] : R(0);
}

template <class R>
QMAPS_INLINE void store_remainders(const R* from, R* address, int count) {
    R* to = global(address);
    constexpr int kBits = 8 * sizeof(R);
    if (is_wide(to, count, kUnit * sizeof(R))) {
        constexpr std::uint32_t kMask = (1u << kBits) - 1;
        Words<kBits / 4> piece = {};
        for (int i = 0; i < kUnit; ++i)
            piece.word[i * kBits / 32] |= (static_cast<std::uint32_t>(from[i]) & kMask)
                                          << i * kBits % 32;
        *reinterpret_cast<Words<kBits / 4>*>(to) = piece;
        return;
    }
    for (int i = 0; i < kUnit; ++i)
        if (i < count) to[i] = from[i];
}

QMAPS_INLINE std::uint64_t joined_words(std::uint32_t low, std::uint32_t high) {
    return static_cast<std::uint64_t>(high) << 32 | low;
}

// Codes of eight elements: a byte each, or of more than 8 bits.
struct WideCodes {
    std::uint16_t code[kUnit];
};

// The same of 4 bits, as they are stored.
struct Nibbles {
    std::uint32_t word;
};

template <int kBits>
struct CodesOf {
    using Type = std::uint64_t;
};
template <>
struct CodesOf<4> {
    using Type = Nibbles;
};
template <>
struct CodesOf<16> {
    using Type = WideCodes;
};
template <int kBits>
using Codes = typename CodesOf<(kBits > 8 ? 16 : kBits)>::Type;

QMAPS_INLINE int code_at(std::uint64_t codes, int j) {
    return static_cast<int>(codes >> (8 * j) & 0xFFu);
}
QMAPS_INLINE int code_at(Nibbles codes, int j) { return static_cast<int>(codes.word >> (4 * j) & 15u); }
QMAPS_INLINE int code_at(const WideCodes& codes, int j) { return codes.code[j]; }

// Where it is 0 so far.
QMAPS_INLINE void put_code(std::uint64_t& codes, int j, int code) {
    // Sums of words are one instruction each with their shift.
    auto low = static_cast<std::uint32_t>(codes), high = static_cast<std::uint32_t>(codes >> 32);
    (j < 4 ? low : high) += static_cast<std::uint32_t>(code) << (8 * (j % 4));
    codes = joined_words(low, high);
}
QMAPS_INLINE void put_code(Nibbles& codes, int j, int code) {
    codes.word += static_cast<std::uint32_t>(code) << (4 * j);
}
QMAPS_INLINE void put_code(WideCodes& codes, int j, int code) {
    codes.code[j] = static_cast<std::uint16_t>(code);
}

// The stream ends with zeros.
QMAPS_INLINE void keep_first(std::uint64_t& codes, int count) {
    if (count < kUnit) codes &= (std::uint64_t{1} << (8 * count)) - 1;
}
QMAPS_INLINE void keep_first(Nibbles& codes, int count) {
    if (count < kUnit) codes.word &= (1u << (4 * count)) - 1u;
}
QMAPS_INLINE void keep_first(WideCodes& codes, int count) {
    for (int j = 0; j < kUnit; ++j) codes.code[j] = j < count ? codes.code[j] : 0;
}

// Codes of 9 to 16 bits without gaps, as in qmaps.algebra.packing.
template <int kBits>
QMAPS_INLINE WideCodes parted_words(const Words<4>& words) {
    WideCodes codes;
    for (int j = 0; j < kUnit; ++j) {
        const int word = j * kBits / 32, bit = j * kBits % 32;
        std::uint32_t code = words.word[word] >> bit;
        if (bit + kBits > 32) code |= words.word[word + 1] << (32 - bit);
        codes.code[j] = static_cast<std::uint16_t>(code & ((1u << kBits) - 1u));
    }
    return codes;
}

template <int kBits>
QMAPS_INLINE Words<4> joined_codes(const WideCodes& codes) {
    Words<4> words = {};
    for (int j = 0; j < kUnit; ++j) {
        const int word = j * kBits / 32, bit = j * kBits % 32;
        words.word[word] |= static_cast<std::uint32_t>(codes.code[j]) << bit;
        if (bit + kBits > 32)
            words.word[word + 1] |= static_cast<std::uint32_t>(codes.code[j]) >> (32 - bit);
    }
    return words;
}

template <int kBits>
QMAPS_INLINE WideCodes load_wide_codes(const std::uint8_t* from, int count) {
    if (kBits == 16 && is_wide(from, count, 16))
        return parted_words<kBits>(*reinterpret_cast<const Words<4>*>(from));
    const int bytes = count < kUnit ? (count * kBits + 7) / 8 : kBits;
    Words<4> words = {};
    for (int k = 0; k < kBits; ++k)
        if (k < bytes) words.word[k / 4] |= static_cast<std::uint32_t>(from[k]) << k % 4 * 8;
    return parted_words<kBits>(words);
}

template <int kBits>
QMAPS_INLINE void store_wide_codes(const WideCodes& codes, std::uint8_t* to, int count) {
    const Words<4> words = joined_codes<kBits>(codes);
    if (kBits == 16 && is_wide(to, count, 16)) {
        *reinterpret_cast<Words<4>*>(to) = words;
        return;
    }
    const int bytes = count < kUnit ? (count * kBits + 7) / 8 : kBits;
    for (int k = 0; k < kBits; ++k)
        if (k < bytes) to[k] = static_cast<std::uint8_t>(words.word[k / 4] >> k % 4 * 8);
}

// Codes of up to 8 bits as they are stored, the first one lowest.
template <int kBits>
QMAPS_INLINE std::uint64_t load_stream(const std::uint8_t* from, int count) {
    if (kBits % 4 == 0 && is_wide(from, count, kBits)) {
        constexpr int kWords = kBits == 8 ? 2 : 1;
        const Words<kWords> found = *reinterpret_cast<const Words<kWords>*>(from);
        return joined_words(found.word[0], kBits == 8 ? found.word[kWords - 1] : 0);
    }
    const int bytes = count < kUnit ? (count * kBits + 7) / 8 : kBits;
    std::uint64_t stream = 0;
    for (int k = 0; k < kBits; ++k)
        if (k < bytes) stream |= static_cast<std::uint64_t>(from[k]) << (8 * k);
    return stream;
}

template <int kBits>
QMAPS_INLINE void store_stream(std::uint64_t stream, std::uint8_t* to, int count) {
    if (kBits % 4 == 0 && is_wide(to, count, kBits)) {
        constexpr int kWords = kBits == 8 ? 2 : 1;
        Words<kWords> made;
        made.word[0] = static_cast<std::uint32_t>(stream);
        if (kBits == 8) made.word[kWords - 1] = static_cast<std::uint32_t>(stream >> 32);
        *reinterpret_cast<Words<kWords>*>(to) = made;
        return;
    }
    const int bytes = count < kUnit ? (count * kBits + 7) / 8 : kBits;
    for (int k = 0; k < kBits; ++k)
        if (k < bytes) to[k] = static_cast<std::uint8_t>(stream >> (8 * k));
}

// Where the codes from `at` on begin, which is a multiple of 8.
template <int kBits>
QMAPS_INLINE std::int64_t byte_of(std::int64_t at) {
    return kBits % 8 == 0 ? at * (kBits / 8) : (at >> 3) * kBits;
}

// The codes of eight elements from `at` on.
template <int kBits>
QMAPS_INLINE Codes<kBits> load_codes(const std::uint8_t* packed, std::int64_t at, int count) {
    const std::uint8_t* from = global(packed) + byte_of<kBits>(at);
    if constexpr (kBits > 8) {
        return load_wide_codes<kBits>(from, count);
    } else {
        const std::uint64_t stream = load_stream<kBits>(from, count);
        if constexpr (kBits == 4) return {static_cast<std::uint32_t>(stream)};
        else return kBits == 8 ? stream : parted_bits(stream, kBits);
    }
}

template <int kBits>
QMAPS_INLINE void store_codes(const Codes<kBits>& codes, std::uint8_t* packed, std::int64_t at,
                              int count) {
    std::uint8_t* to = global(packed) + byte_of<kBits>(at);
    if constexpr (kBits > 8) {
        store_wide_codes<kBits>(codes, to, count);
    } else if constexpr (kBits == 4) {
        store_stream<4>(codes.word, to, count);
    } else {
        store_stream<kBits>(kBits == 8 ? codes : joined_bits(codes, kBits), to, count);
    }
}

}  // namespace qmaps
