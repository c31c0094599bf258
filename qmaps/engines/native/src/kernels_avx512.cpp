// x86-64 with AVX-512 F, BW, DQ, VL, VBMI, and GFNI.
#include <immintrin.h>
#define QMAPS_ISA "avx512"
#define QMAPS_BY_PRODUCTS  // see Divisor
#define QMAPS_KERNELS avx512_kernels
#define QMAPS_SEARCH "search_avx512.hpp"
#include "kernels/all.inl"
