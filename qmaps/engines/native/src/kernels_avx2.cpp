// x86-64 with AVX2, BMI2, FMA and F16C.
#include <immintrin.h>
#define QMAPS_ISA "avx2"
#define QMAPS_BY_PRODUCTS  // see Divisor
#define QMAPS_KERNELS avx2_kernels
#define QMAPS_SEARCH "search_avx2.hpp"
#include "kernels/all.inl"
