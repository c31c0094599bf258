// A CUDA driver that does nothing but say what it is asked: enough to load a kernel and launch it.
#include <cstdint>
#include <cstdio>
#include <cstring>

extern "C" {

int cuInit(unsigned) { return 0; }

static int anything() { return 0; }

static int load(void** library, const char* code, void*, void*, unsigned, void*, void*, unsigned) {
    std::printf("load %.3s\n", code + 1);
    *library = reinterpret_cast<void*>(0x1234);
    return 0;
}

static int get_kernel(void** kernel, void* library, const char* name) {
    std::printf("kernel %s of %p\n", name, library);
    *kernel = reinterpret_cast<void*>(0x5678);
    return 0;
}

static int get_function(void** function, void* kernel) {
    std::printf("function of %p\n", kernel);
    *function = reinterpret_cast<void*>(0x9abc);
    return 0;
}

static int launch(void* function, unsigned x, unsigned y, unsigned z, unsigned threads,
                  unsigned threads_y, unsigned threads_z, unsigned, void* stream,
                  void** arguments, void**) {
    std::uint64_t words[3];
    std::memcpy(words, arguments[0], sizeof words);
    std::printf("launch %p blocks %u %u %u threads %u %u %u stream %p arguments %lx %lx %lx\n",
                function, x, y, z, threads, threads_y, threads_z, stream, words[0], words[1],
                words[2]);
    std::fflush(stdout);
    return function == reinterpret_cast<void*>(0x9abc) && x == 13 ? 700 : 0;  // illegal address
}

int cuDriverGetVersion(int* version) {
    *version = 13000;
    return 0;
}

int cuGetProcAddress_v2(const char* name, void** found, int, std::uint64_t, int* status) {
    const struct {
        const char* name;
        void* function;
    } known[] = {
        {"cuInit", reinterpret_cast<void*>(cuInit)},
        {"cuDriverGetVersion", reinterpret_cast<void*>(cuDriverGetVersion)},
        {"cuGetProcAddress", reinterpret_cast<void*>(cuGetProcAddress_v2)},
        {"cuLibraryLoadData", reinterpret_cast<void*>(load)},
        {"cuLibraryGetKernel", reinterpret_cast<void*>(get_kernel)},
        {"cuKernelGetFunction", reinterpret_cast<void*>(get_function)},
        {"cuLaunchKernel", reinterpret_cast<void*>(launch)},
    };
    *found = reinterpret_cast<void*>(anything);
    for (const auto& each : known)
        if (std::strcmp(each.name, name) == 0) *found = each.function;
    if (status) *status = 0;
    return 0;
}
}
