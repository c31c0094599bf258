#include "metrics.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "parallel.hpp"

namespace qmaps {
namespace {

void prepare_moments(UpdateTask& task, const Kernels& set) {
    for (StateTask* state : {&task.first, &task.second})
        if (state->codec.codebook) prepare(state->codec, set, task.numel, true);
}

float float_of(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// The digit, of kDigits, that the value of rank `rank` has; `rank` becomes that among those which
// share it. `digit` gives kDigits for values that do not count. In four tables: neighbours are often equal, and would wait for each other in one.
template <std::uint32_t kDigits, class Digit>
std::uint32_t find_digit(const std::uint32_t* values, std::int64_t count, std::int64_t& rank,
                         const Digit& digit) {
    std::int64_t counters[4][kDigits + 1] = {};
    std::int64_t i = 0;
    for (; i + 4 <= count; i += 4)
        for (int k = 0; k < 4; ++k) ++counters[k][digit(values[i + k])];
    for (; i < count; ++i) ++counters[0][digit(values[i])];
    std::uint32_t at = 0;
    for (;; ++at) {
        std::int64_t here = 0;
        for (int k = 0; k < 4; ++k) here += counters[k][at];
        if (rank < here || at + 1 == kDigits) return at;
        rank -= here;
    }
}

// The number of rank `rank` (from 0) among `count` that agree in their bits from kBinShift on.
std::uint32_t select(const std::uint32_t* values, std::int64_t count, std::int64_t rank) {
    constexpr int kLow = 9;
    constexpr std::uint32_t kLows = 1u << kLow, kHighs = 1u << (kBinShift - kLow);
    const auto high_of = [](std::uint32_t value) { return value >> kLow & (kHighs - 1); };
    const std::uint32_t high = find_digit<kHighs>(values, count, rank, high_of);
    const std::uint32_t low =
        find_digit<kLows>(values, count, rank, [&](std::uint32_t value) {
            return high_of(value) == high ? value & (kLows - 1) : kLows;
        });
    return (values[0] >> kBinShift << kBinShift) | high << kLow | low;
}

}  // namespace

Measured measure(QuantizeTask& task, std::int64_t* counts, int threads) {
    const MetricKernels& set = kernels().metrics;
    std::vector<ErrorSums> parts(static_cast<std::size_t>(items_of(task)));
    std::vector<CodeCounts> tables(static_cast<std::size_t>(threads));
    Measured result;
    result.flags = encode(
        task, threads,
        [&](std::int64_t begin, std::int64_t end, std::int64_t item, int thread) {
            return set.measure_local(task, begin, end, parts[item], tables[thread], scratch());
        },
        [&](std::int64_t begin, std::int64_t end, std::int64_t item, int thread) {
            set.measure_fresh(task, begin, end, parts[item], tables[thread], scratch());
            return 0;
        });
    ErrorSums& all = result.sums;
    for (const ErrorSums& part : parts) {
        all.absolute += part.absolute;
        all.square += part.square;
        all.signal += part.signal;
        all.relative += part.relative;
        all.signed_error += part.signed_error;
        all.largest = std::max(all.largest, part.largest);
        all.nonzero += part.nonzero;
        all.zeroed += part.zeroed;
    }
    if (std::isnan(all.absolute)) all.largest = all.absolute;
    for (int code = 0; code < task.codec.codebook->size; ++code) {
        counts[code] = 0;
        for (const CodeCounts& of_thread : tables)
            for (const auto& table : of_thread.table) counts[code] += table[code];
    }
    return result;
}

void UpdateErrors::clear() {
    numel_ = 0;
    for (auto& bins : bins_) bins.assign(kBins, 0);
    sums_ = {};
}

void UpdateErrors::reserve(std::int64_t numel) {
    if (numel <= room_) return;
    const auto room = std::max(numel, room_ + room_ / 2);
    for (auto& bits : bits_) {
        std::unique_ptr<std::uint32_t[]> larger(new std::uint32_t[static_cast<std::size_t>(room)]);
        if (numel_ > 0)
            std::memcpy(larger.get(), bits.get(), static_cast<std::size_t>(numel_) * 4);
        bits = std::move(larger);
    }
    room_ = room;
}

void UpdateErrors::add(UpdateTask& task, int threads) {
    const Kernels& set = kernels();
    if (bins_[0].empty()) clear();
    reserve(numel_ + task.numel);
    prepare_moments(task, set);
    const std::int64_t items = chunks(task.numel, kChunk);
    std::vector<UpdateSums> parts(static_cast<std::size_t>(items));
    std::vector<UpdateBins> of_threads(static_cast<std::size_t>(threads));
    parallel(items, threads, [&](std::int64_t item, int thread) {
        set.metrics.update_errors(task, item * kChunk, std::min(task.numel, (item + 1) * kChunk),
                          bits_[0].get() + numel_, bits_[1].get() + numel_, parts[item],
                          of_threads[thread], step_scratch());
    });
    for (const UpdateSums& part : parts) {
        sums_.absolute += part.absolute;
        sums_.relative += part.relative;
        sums_.nonzero += part.nonzero;
        sums_.collapsed += part.collapsed;
    }
    for (const UpdateBins& bins : of_threads)
        for (int b = 0; b < kBins; ++b) {
            bins_[0][b] += std::int64_t{bins.absolute[0][b]} + bins.absolute[1][b];
            bins_[1][b] += std::int64_t{bins.relative[0][b]} + bins.relative[1][b];
        }
    numel_ += task.numel;
}

std::array<ErrorSummary, 2> UpdateErrors::summaries(const std::vector<double>& levels,
                                                    int threads) const {
    std::array<ErrorSummary, 2> result{ErrorSummary{numel_, sums_.absolute, {}},
                                       ErrorSummary{sums_.nonzero, sums_.relative, {}}};
    // Bins that hold the wanted ranks, each gathered once.
    struct Bin {
        int kind;
        std::uint32_t number;
        std::int64_t size;
        std::unique_ptr<std::uint32_t[]> values;
        std::atomic<std::int64_t> filled{0};
    };
    struct Rank {
        int kind;
        std::size_t at;  // in the result
        const Bin* bin;
        std::int64_t within;
    };
    std::vector<std::unique_ptr<Bin>> wanted;
    std::vector<Rank> ranks;
    const auto want = [&](int kind, std::size_t at, std::int64_t rank) {
        std::uint32_t number = 0;
        while (rank >= bins_[kind][number]) rank -= bins_[kind][number++];
        const Bin* gathered_in = nullptr;
        for (const auto& bin : wanted)
            if (bin->kind == kind && bin->number == number) gathered_in = bin.get();
        if (!gathered_in) {
            const std::int64_t size = bins_[kind][number];
            wanted.push_back(std::make_unique<Bin>());
            Bin& bin = *wanted.back();
            bin.kind = kind;
            bin.number = number;
            bin.size = size;
            bin.values.reset(new std::uint32_t[static_cast<std::size_t>(size)]);
            gathered_in = &bin;
        }
        ranks.push_back({kind, at, gathered_in, rank});
    };
    for (int kind = 0; kind < 2; ++kind) {
        const std::int64_t count = result[kind].count;
        if (count == 0) continue;
        result[kind].ranks.resize(levels.size() + 1);
        for (std::size_t i = 0; i < levels.size(); ++i) {
            const double rank = std::ceil(levels[i] * static_cast<double>(count)) - 1;
            want(kind, i, static_cast<std::int64_t>(rank));
        }
        want(kind, levels.size(), count - 1);
    }

    const Kernels& set = kernels();
    parallel(chunks(numel_, kChunk), threads, [&](std::int64_t item, int) {
        std::uint32_t gathered[kTile + kLanes];
        const std::int64_t end = std::min(numel_, (item + 1) * kChunk);
        for (std::int64_t at = item * kChunk; at < end; at += kTile)
            for (const auto& bin : wanted) {
                const std::int64_t some =
                    set.metrics.gather_bin(bits_[bin->kind].get() + at, std::min(kTile, end - at),
                                   bin->number, gathered);
                const std::int64_t to = bin->filled.fetch_add(some, std::memory_order_relaxed);
                std::memcpy(bin->values.get() + to, gathered, static_cast<std::size_t>(some) * 4);
            }
    });
    parallel(static_cast<std::int64_t>(ranks.size()), threads, [&](std::int64_t i, int) {
        const Rank& rank = ranks[i];
        const std::uint32_t bits = select(rank.bin->values.get(), rank.bin->size, rank.within);
        result[rank.kind].ranks[rank.at] = float_of(bits);
    });
    return result;
}

void add_update_grid(UpdateTask& task, double* count, double* absolute, double* relative,
                     double* nonzero, int threads) {
    constexpr std::int64_t kSegments = 16, kSegment = 1 << 18;
    const Kernels& set = kernels();
    prepare_moments(task, set);
    const auto cells =
        static_cast<std::size_t>(task.first.codec.codebook->size * task.second.codec.codebook->size);
    const std::int64_t even = chunks(chunks(task.numel, kSegments), kTile) * kTile;
    const std::int64_t segment = std::max(kSegment, even);
    const std::int64_t items = chunks(task.numel, segment);
    std::vector<std::vector<CellSums>> grids(static_cast<std::size_t>(items),
                                             std::vector<CellSums>(cells));
    parallel(items, threads, [&](std::int64_t item, int) {
        set.metrics.update_grid(task, item * segment, std::min(task.numel, (item + 1) * segment),
                        grids[item].data(), step_scratch());
    });
    for (const auto& grid : grids)
        for (std::size_t c = 0; c < cells; ++c) {
            count[c] += static_cast<double>(grid[c].count);
            absolute[c] += grid[c].absolute;
            relative[c] += grid[c].relative;
            nonzero[c] += static_cast<double>(grid[c].nonzero);
        }
}

}  // namespace qmaps
