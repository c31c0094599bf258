// What any compiler makes for its target without further flags.
#define QMAPS_ISA "portable"
#if defined(__aarch64__)
#define QMAPS_BY_PRODUCTS  // see Divisor; this one always has fused products
#endif
#define QMAPS_KERNELS portable_kernels
#define QMAPS_SEARCH "search_portable.hpp"
#include "kernels/all.inl"
