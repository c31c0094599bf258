// What any compiler makes for its target without further flags.
#define QMAPS_ISA "portable"
#define QMAPS_KERNELS portable_kernels
#define QMAPS_SEARCH "search_portable.hpp"
#include "kernels/all.inl"
