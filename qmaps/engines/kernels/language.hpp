// What C++ compilers and CUDA spell differently. The headers of this folder say what is done with
// one element; the CPU engine and the CUDA kernels both compile them, each in a namespace of its
// own, after this one. They include nothing.

#if defined(__CUDACC__)
#define QMAPS_INLINE __device__ __forceinline__
#define QMAPS_RARE __device__ __noinline__
#else
#define QMAPS_INLINE inline __attribute__((always_inline))
#define QMAPS_RARE inline __attribute__((noinline))
#endif

// Keeps a compiler from knowing a constant: it then takes the minimum with it in one instruction,
// in place of a comparison and a blend.
#if defined(__x86_64__) && !defined(__CUDACC__)
#define QMAPS_UNKNOWN(value) asm("" : "+x"(value))
#else
#define QMAPS_UNKNOWN(value)
#endif
