// 64-bit Arm.
#include <arm_neon.h>
#define QMAPS_ISA "neon"
#define QMAPS_BY_PRODUCTS  // see Divisor
#define QMAPS_KERNELS neon_kernels
#define QMAPS_SEARCH "search_neon.hpp"
#include "kernels/all.inl"
