// Counts bank conflicts: what the compiler calls at every read with -fsanitize=thread.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <vector>

extern "C" {

unsigned emulated_thread();

static std::uintptr_t first, last;
// Word addresses by the place of the read in the code, and by thread, in their order.
static std::map<std::uintptr_t, std::vector<std::vector<std::uint32_t>>> reads;

void watch(std::uintptr_t begin, std::uintptr_t end) { first = begin, last = end; }

// The place of each read in the code, the number of times that a warp came there, and the number of
// words that its threads asked of one bank, the most of all banks.
void report(const char* path) {
    std::FILE* file = std::fopen(path, "w");
    for (const auto& [place, threads] : reads) {
        std::uint64_t times = 0, turns = 0;
        for (std::size_t warp = 0; warp < 256; warp += 32) {
            std::size_t longest = 0;
            for (std::size_t lane = 0; lane < 32; ++lane) longest = std::max(longest, threads[warp + lane].size());
            for (std::size_t k = 0; k < longest; ++k, ++times) {
                std::vector<std::uint32_t> bank[32];
                std::size_t most = 0;
                for (std::size_t lane = 0; lane < 32; ++lane) {
                    if (k >= threads[warp + lane].size()) continue;
                    const std::uint32_t word = threads[warp + lane][k];
                    auto& words = bank[word % 32];
                    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
                    most = std::max(most, words.size());
                }
                turns += most;
            }
        }
        std::fprintf(file, "%zx %zu %zu\n", place, std::size_t{times}, std::size_t{turns});
    }
    std::fclose(file);
}

static void read(void* at, void* place) {
    const auto address = reinterpret_cast<std::uintptr_t>(at);
    if (address < first || address >= last) return;
    auto& threads = reads[reinterpret_cast<std::uintptr_t>(place) - 1];
    threads.resize(256);
    threads[emulated_thread()].push_back(static_cast<std::uint32_t>((address - first) / 4));
}

#define HOOK(name) void name(void* at) { read(at, __builtin_return_address(0)); }
HOOK(__tsan_read1)
HOOK(__tsan_read2)
HOOK(__tsan_read4)
HOOK(__tsan_read8)
HOOK(__tsan_read16)
HOOK(__tsan_unaligned_read2)
HOOK(__tsan_unaligned_read4)
HOOK(__tsan_unaligned_read8)
HOOK(__tsan_unaligned_read16)
#define NOTHING(name) void name(void*) {}
NOTHING(__tsan_init)
NOTHING(__tsan_func_entry)
NOTHING(__tsan_func_exit)
NOTHING(__tsan_write1)
NOTHING(__tsan_write2)
NOTHING(__tsan_write4)
NOTHING(__tsan_write8)
NOTHING(__tsan_write16)
NOTHING(__tsan_unaligned_write2)
NOTHING(__tsan_unaligned_write4)
NOTHING(__tsan_unaligned_write8)
NOTHING(__tsan_unaligned_write16)
NOTHING(__tsan_read_range)
NOTHING(__tsan_write_range)
}
