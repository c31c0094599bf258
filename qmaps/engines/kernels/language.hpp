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
