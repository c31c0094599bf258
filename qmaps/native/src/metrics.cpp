#include "metrics.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "parallel.hpp"

namespace qmaps {
namespace {

std::int64_t chunks(std::int64_t numel, std::int64_t chunk) { return (numel + chunk - 1) / chunk; }

void prepare_moments(UpdateTask& task, const Kernels& set) {
    for (StateTask* state : {&task.first, &task.second})
        if (state->codec.book) prepare(state->codec, set, task.numel, true);
}

float float_of(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// The number of rank `rank` (from 0) among `count` that agree in their bits from kBinShift on.
std::uint32_t select(const std::uint32_t* values, std::int64_t count, std::int64_t rank) {
    constexpr int kLow = 9, kHigh = kBinShift - kLow;
    std::vector<std::int64_t> found(1 << kHigh, 0);
    const auto find = [&](std::uint32_t size) {
        std::uint32_t at = 0;
        while (at + 1 < size && rank >= found[at]) rank -= found[at++];
        return at;
    };
    for (std::int64_t i = 0; i < count; ++i) ++found[values[i] >> kLow & ((1u << kHigh) - 1)];
    const std::uint32_t high = find(1u << kHigh);
    std::fill(found.begin(), found.end(), 0);
    for (std::int64_t i = 0; i < count; ++i)
        if ((values[i] >> kLow & ((1u << kHigh) - 1)) == high)
            ++found[values[i] & ((1u << kLow) - 1)];
    const std::uint32_t low = find(1u << kLow);
    return (values[0] >> kBinShift << kBinShift) | high << kLow | low;
}

}  // namespace

Measured measure(QuantizeTask& task, std::int64_t* counts, int threads) {
    const Kernels& set = kernels();
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
        all.largest = std::max(all.largest, part.largest);
        all.nonzero += part.nonzero;
        all.zeroed += part.zeroed;
    }
    if (std::isnan(all.absolute)) all.largest = all.absolute;
    for (int code = 0; code < task.codec.book->size; ++code) {
        counts[code] = 0;
        for (const CodeCounts& of_thread : tables)
            for (const auto& table : of_thread.table) counts[code] += table[code];
    }
    return result;
}

void UpdateErrors::clear() {
    numel_ = 0;
    absolute_bins_.assign(kBins, 0);
    relative_bins_.assign(kBins, 0);
    sums_ = {};
}

void UpdateErrors::reserve(std::int64_t numel) {
    if (numel <= room_) return;
    const auto room = std::max(numel, room_ + room_ / 2);
    for (auto* array : {&absolute_, &relative_}) {
        std::unique_ptr<std::uint32_t[]> larger(new std::uint32_t[static_cast<std::size_t>(room)]);
        if (numel_ > 0)
            std::memcpy(larger.get(), array->get(), static_cast<std::size_t>(numel_) * 4);
        *array = std::move(larger);
    }
    room_ = room;
}

void UpdateErrors::add(UpdateTask& task, int threads) {
    const Kernels& set = kernels();
    if (absolute_bins_.empty()) clear();
    reserve(numel_ + task.numel);
    prepare_moments(task, set);
    const std::int64_t items = chunks(task.numel, kChunk);
    std::vector<UpdateSums> parts(static_cast<std::size_t>(items));
    const std::unique_ptr<UpdateBins[]> bins(new UpdateBins[static_cast<std::size_t>(threads)]());
    parallel(items, threads, [&](std::int64_t item, int thread) {
        set.update_errors(task, item * kChunk, std::min(task.numel, (item + 1) * kChunk),
                          absolute_.get() + numel_, relative_.get() + numel_, parts[item],
                          bins[thread], step_scratch());
    });
    for (const UpdateSums& part : parts) {
        sums_.absolute += part.absolute;
        sums_.relative += part.relative;
        sums_.nonzero += part.nonzero;
        sums_.collapsed += part.collapsed;
    }
    for (int t = 0; t < threads; ++t)
        for (int b = 0; b < kBins; ++b) {
            absolute_bins_[b] += bins[t].absolute[0][b] + bins[t].absolute[1][b];
            relative_bins_[b] += bins[t].relative[0][b] + bins[t].relative[1][b];
        }
    numel_ += task.numel;
}

ErrorSummary UpdateErrors::absolute(const std::vector<double>& levels, int threads) const {
    return summary(absolute_.get(), absolute_bins_.data(), numel_, sums_.absolute, levels, threads);
}

ErrorSummary UpdateErrors::relative(const std::vector<double>& levels, int threads) const {
    return summary(relative_.get(), relative_bins_.data(), sums_.nonzero, sums_.relative, levels,
                   threads);
}

ErrorSummary UpdateErrors::summary(const std::uint32_t* bits, const std::uint64_t* bins,
                                   std::int64_t count, double sum,
                                   const std::vector<double>& levels, int threads) const {
    ErrorSummary result{count, sum, {}};
    if (count == 0) return result;

    // The bins that hold the wanted ranks, each gathered once.
    struct Bin {
        std::uint32_t number;
        std::int64_t size;
        std::unique_ptr<std::uint32_t[]> values;
        std::atomic<std::int64_t> filled{0};
    };
    struct Rank {
        std::size_t bin;
        std::int64_t within;
    };
    std::vector<std::unique_ptr<Bin>> wanted;
    std::vector<Rank> ranks;
    const auto want = [&](std::int64_t rank) {
        std::uint32_t number = 0;
        while (rank >= static_cast<std::int64_t>(bins[number]))
            rank -= static_cast<std::int64_t>(bins[number++]);
        std::size_t at = 0;
        while (at < wanted.size() && wanted[at]->number != number) ++at;
        if (at == wanted.size()) {
            wanted.push_back(std::make_unique<Bin>());
            wanted[at]->number = number;
            wanted[at]->size = static_cast<std::int64_t>(bins[number]);
            wanted[at]->values.reset(new std::uint32_t[bins[number]]);
        }
        ranks.push_back({at, rank});
    };
    for (const double level : levels)
        want(static_cast<std::int64_t>(std::ceil(level * static_cast<double>(count))) - 1);
    want(count - 1);

    const Kernels& set = kernels();
    parallel(chunks(numel_, kChunk), threads, [&](std::int64_t item, int) {
        std::uint32_t found[kTile + kLanes];
        const std::int64_t end = std::min(numel_, (item + 1) * kChunk);
        for (std::int64_t at = item * kChunk; at < end; at += kTile)
            for (const auto& bin : wanted) {
                const std::int64_t some =
                    set.gather_bin(bits + at, std::min(kTile, end - at), bin->number, found);
                const std::int64_t to = bin->filled.fetch_add(some, std::memory_order_relaxed);
                std::memcpy(bin->values.get() + to, found, static_cast<std::size_t>(some) * 4);
            }
    });
    result.ranks.resize(ranks.size());
    parallel(static_cast<std::int64_t>(ranks.size()), threads, [&](std::int64_t i, int) {
        const Bin& bin = *wanted[ranks[i].bin];
        result.ranks[i] = float_of(select(bin.values.get(), bin.size, ranks[i].within));
    });
    return result;
}

void add_update_grid(UpdateTask& task, double* count, double* absolute, double* relative,
                     double* nonzero, int threads) {
    constexpr std::int64_t kSegments = 16, kSegment = 1 << 18;
    const Kernels& set = kernels();
    prepare_moments(task, set);
    const auto cells =
        static_cast<std::size_t>(task.first.codec.book->size * task.second.codec.book->size);
    const std::int64_t even = chunks(chunks(task.numel, kSegments), kTile) * kTile;
    const std::int64_t segment = std::max(kSegment, even);
    const std::int64_t items = chunks(task.numel, segment);
    std::vector<std::vector<CellSums>> grids(static_cast<std::size_t>(items),
                                             std::vector<CellSums>(cells));
    parallel(items, threads, [&](std::int64_t item, int) {
        set.update_grid(task, item * segment, std::min(task.numel, (item + 1) * segment),
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
