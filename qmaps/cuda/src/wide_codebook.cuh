// Codebooks of more codes than a byte tells apart. They stay in global memory, where caches keep what
// is used; or their values are the finite numbers of a 16-bit format, and nothing is looked up.
#pragma once

#include "codebook.cuh"

namespace qmaps {

QMAPS_INLINE float value_of(const Codebook& codebook, int code) {
    if (codebook.half == kFloat32) return codebook.values[code];
    const std::uint16_t half =
        half_of_code(static_cast<std::uint16_t>(code), static_cast<std::uint16_t>(codebook.zero),
                     static_cast<std::uint16_t>(codebook.most));
    return codebook.half == kBfloat16 ? from_bf16(half) : from_f16(half);
}

// The code of the nearest value, or of the lower of two neighbours, of n, which is not NaN.
template <class F>
QMAPS_INLINE int search_code(const Codebook& codebook, float n) {
    if (codebook.half == kFloat32) {
        const Search& search = F::kStochastic ? codebook.lower : codebook.nearest;
        const std::uint32_t bits = bits_of(n);
        const std::uint32_t order = bits >> 31 ? ~bits : bits | 0x80000000u;
        return refined(search.limit, search.below[order >> 16], F::kSteps, n);
    }
    const std::uint16_t half = codebook.half == kBfloat16 ? to_bf16(n) : to_f16(n);
    const int code = code_of_half(half, static_cast<std::uint16_t>(codebook.zero),
                                  static_cast<std::uint16_t>(codebook.most));
    return F::kStochastic && code > 0 && value_of(codebook, code) > n ? code - 1 : code;
}

QMAPS_INLINE float value_of(const Book& book, int code) { return book.shared.value[code]; }

QMAPS_INLINE const Codebook& numbers_of(const Codebook& codebook) { return codebook; }
QMAPS_INLINE const Codebook& numbers_of(const Book& book) { return book.codebook; }

// The codebook that a format reads: with a copy in shared memory, unless it has more than 8 bits.
template <class F>
QMAPS_INLINE decltype(auto) book_of(const Codebook& codebook, const SharedBook& shared) {
    if constexpr (F::kWide) {
        return (codebook);
    } else {
        return Book{codebook, shared};
    }
}

}  // namespace qmaps
