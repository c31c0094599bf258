// x86-64 with AVX2, BMI2 and F16C.
#include <immintrin.h>
#define QMAPS_ISA "avx2"
#define QMAPS_KERNELS avx2_kernels
#define QMAPS_SEARCH "search_portable.hpp"
#include "kernels/all.inl"
