// 64-bit Arm.
#include <arm_neon.h>
#define QMAPS_ISA "neon"
#define QMAPS_NEON
#define QMAPS_BY_PRODUCTS  // see Divisor; this one always has fused products
#define QMAPS_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define QMAPS_SIDE_BY_SIDE(vectors) QMAPS_PRAGMA(clang loop interleave_count(vectors))
#else
#define QMAPS_SIDE_BY_SIDE(vectors) QMAPS_PRAGMA(GCC unroll vectors)
#endif
#define QMAPS_KERNELS neon_kernels
#define QMAPS_SEARCH "search_neon.hpp"
#include "kernels/all.inl"
