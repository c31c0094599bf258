// Small tensors are sorted. In larger ones the elements are counted by their leading bits; cells of
// equal leading bits that hold a wanted rank are counted by further bits, or, once they hold few
// enough elements, copied out first. Two reads of the tensor suffice for most data.
#include "quantiles.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include "parallel.hpp"
#include "workspace.hpp"

namespace qmaps {
namespace {

using Word = std::uint32_t;

constexpr std::int64_t kSorted = 1 << 17;         // elements up to which sorting is faster
constexpr std::int64_t kFew = 1 << 13;            // the same among collected ones
constexpr std::int64_t kCounters = 1 << 17;       // that a thread may use for further digits
constexpr std::int64_t kShare = 1 << 19;          // of such a thread in later passes
constexpr std::int64_t kStretch = 1 << 14;        // elements that a thread takes at a time
constexpr std::int64_t kHalves = 1 << 16;         // numbers of 16 bits
constexpr std::int64_t kSegment = std::int64_t{1} << 31;  // elements that 32-bit counters bear

std::int64_t pieces(std::int64_t count, std::int64_t size) { return (count + size - 1) / size; }

// As many threads as have work enough: more elements each than counters, and in later passes more
// than it costs to wait for each other on a busy machine.
int useful(int threads, std::int64_t numel, std::int64_t at_least = kTops) {
    return static_cast<int>(std::clamp<std::int64_t>(numel / at_least, 1, threads));
}

// What count(begin, end, counters) counts over [0, numel), on private counters; in the workspace.
template <class Count>
const std::int64_t* count_all(std::int64_t numel, std::int64_t bins, int threads,
                              const Count& count) {
    auto* totals = workspace().zeros<std::int64_t>(bins);
    const Workspace::Scope scope(workspace());
    auto* counters_of_all = workspace().take<Word>(threads * bins);
    for (std::int64_t first = 0; first < numel; first += kSegment) {
        const std::int64_t last = std::min(numel, first + kSegment);
        std::vector<char> used(static_cast<std::size_t>(threads));
        parallel(pieces(last - first, kStretch), threads, [&](std::int64_t piece, int thread) {
            Word* counters = counters_of_all + thread * bins;
            if (!used[thread]) std::memset(counters, 0, static_cast<std::size_t>(bins) * 4);
            used[thread] = 1;
            const std::int64_t begin = first + piece * kStretch;
            count(begin, std::min(last, begin + kStretch), counters);
        });
        for (int thread = 0; thread < threads; ++thread)
            if (used[thread])
                for (std::int64_t bin = 0; bin < bins; ++bin)
                    totals[bin] += counters_of_all[thread * bins + bin];
    }
    return totals;
}

// Ranks in ascending order, and where the caller has them.
struct Ranks {
    Ranks(const std::int64_t* ranks, std::int64_t count) : place(count), rank(count) {
        std::iota(place.begin(), place.end(), std::size_t{0});
        std::sort(place.begin(), place.end(),
                  [&](std::size_t a, std::size_t b) { return ranks[a] < ranks[b]; });
        for (std::size_t i = 0; i < place.size(); ++i) rank[i] = ranks[place[i]];
    }
    std::vector<std::size_t> place;
    std::vector<std::int64_t> rank;
};

// Elements of the same leading bits, among them some of wanted ranks.
struct Cell {
    std::uint32_t bits;
    std::int64_t before, inside;  // elements in lower cells and in this one
    std::size_t first, last;      // which ranks
};

// Append the cells into which `digits` values of the next digit divide the ranks [first, last).
// Of negative numbers those of larger magnitude come first.
void divide(std::uint32_t bits, bool negative, int width, const std::int64_t* inside,
            std::int64_t before, const Ranks& ranks, std::size_t first, std::size_t last,
            std::vector<Cell>& cells) {
    const std::int64_t digits = std::int64_t{1} << width;
    for (std::int64_t i = 0; first < last && i < digits; ++i) {
        const std::int64_t digit = negative ? digits - 1 - i : i;
        if (inside[digit] == 0) continue;
        std::size_t end = first;
        while (end < last && ranks.rank[end] < before + inside[digit]) ++end;
        if (end > first)
            cells.push_back({bits << width | static_cast<std::uint32_t>(digit), before,
                             inside[digit], first, end});
        first = end;
        before += inside[digit];
    }
}

// The same by sign and `width` further leading bits.
std::vector<Cell> divide_all(const std::int64_t* inside, int width, const Ranks& ranks) {
    const std::int64_t* negative = inside + (std::int64_t{1} << width);
    const std::int64_t negatives =
        std::accumulate(negative, negative + (std::int64_t{1} << width), std::int64_t{0});
    const std::size_t zero = static_cast<std::size_t>(
        std::lower_bound(ranks.rank.begin(), ranks.rank.end(), negatives) - ranks.rank.begin());
    std::vector<Cell> cells;
    divide(1, true, width, negative, 0, ranks, 0, zero, cells);
    divide(0, false, width, inside, negatives, ranks, zero, ranks.rank.size(), cells);
    return cells;
}

// Of counts by sign, exponent and further bits, those of NaN and infinity.
std::int64_t non_finite(const std::int64_t* counts, std::int64_t bins, int exponent_bits) {
    const std::int64_t half = bins / 2, special = half >> exponent_bits;
    std::int64_t count = 0;
    for (std::int64_t i = half - special; i < half; ++i) count += counts[i] + counts[half + i];
    return count;
}

std::int64_t tops_of(Dtype dtype) { return dtype == Dtype::kFloat32 ? kTops : kHalves; }

const std::int64_t* count_tops(const Elements& x, int threads) {
    const Selection& set = kernels().selection;
    return count_all(x.numel, tops_of(x.dtype), useful(threads, x.numel),
                     [&](std::int64_t begin, std::int64_t end, std::uint32_t* counters) {
                         set.count_tops(x.x, x.dtype, begin, end, counters);
                     });
}

// The float that all 16 bits of a half-precision type stand for.
float value_of(std::int64_t code, Dtype dtype) {
    const Selection& set = kernels().selection;
    const auto half = static_cast<std::uint16_t>(code);
    std::uint32_t key;
    set.keys(&half, dtype, 0, 1, &key);
    return set.of_key(key);
}

// Bits of floats, some of which lie in cells that matter.
struct Source {
    const void* bits;
    std::int64_t count;
};

// Finds ranks among float32 elements whose top bits are counted.
class Narrowing {
  public:
    Narrowing(const Elements& x, std::vector<Cell> cells, const Ranks& ranks, float* values,
              int threads)
        : set_(kernels().selection), source_{x.x, x.numel}, cells_(std::move(cells)),
          ranks_(ranks), values_(values), threads_(threads), limit_(x.numel / 8),
          wanted_tops_(workspace().zeros<std::uint8_t>(kTops)) {
        for (const Cell& cell : cells_) wanted_tops_[cell.bits] = 1;
        number_cells(kTopBits, kTops, [](const Cell& cell) { return cell.bits; });
    }

    void run() {
        while (!cells_.empty()) {
            const std::int64_t matter = std::accumulate(
                cells_.begin(), cells_.end(), std::int64_t{0},
                [](std::int64_t sum, const Cell& cell) { return sum + cell.inside; });
            const bool few = matter <= kFew;
            if (few || (matter <= limit_ && 2 * matter <= source_.count)) collect(matter);
            if (few) {
                sort_rest();
                return;
            }
            next_digit();
        }
    }

  private:
    // Cells are numbered anew, and their numbers found by the last digit.
    template <class Index>
    void number_cells(int width, std::int64_t entries, const Index& index) {
        Word* table = workspace().zeros<Word>(entries);
        Word number = 0;
        for (const Cell& cell : cells_) table[index(cell)] = ++number;
        known_ += width;
        table_.tables[table_.digits] = table;
        table_.shifts[table_.digits] = 32 - known_;
        table_.widths[table_.digits++] = width;
    }

    void next_digit() {
        const std::int64_t numbers = static_cast<std::int64_t>(cells_.size()) + 1;
        int width = std::min(2, 32 - known_);
        while (known_ + width < 32 && numbers << (width + 1) <= kCounters) ++width;
        const auto counts = count_all(
            source_.count, numbers << width, useful(threads_, source_.count, kShare),
            [&](std::int64_t begin, std::int64_t end, std::uint32_t* counters) {
                set_.count_digits(source_.bits, begin, end, table_, width, counters);
            });
        std::vector<Cell> divided;
        std::vector<std::uint32_t> parent;
        for (std::int64_t number = 1; number < numbers; ++number) {
            const Cell& cell = cells_[number - 1];
            divide(cell.bits, cell.bits >> (known_ - 1), width, counts + (number << width),
                   cell.before, ranks_, cell.first, cell.last, divided);
            parent.resize(divided.size(), static_cast<std::uint32_t>(number));
        }
        cells_ = std::move(divided);
        if (known_ + width == 32) {
            for (const Cell& cell : cells_) answer(cell, [&](std::int64_t) { return float_of(cell.bits); });
            cells_.clear();
            return;
        }
        const std::uint32_t mask = (1u << width) - 1u;
        number_cells(width, numbers << width, [&](const Cell& cell) {
            return parent[static_cast<std::size_t>(&cell - cells_.data())] << width |
                   (cell.bits & mask);
        });
    }

    // Leave the source for a copy of those elements that matter.
    void collect(std::int64_t matter) {
        const int threads = useful(threads_, source_.count, kShare);
        Word* copy = workspace().take<Word>(matter);
        const Workspace::Scope scope(workspace());
        Word* stages = workspace().take<Word>(threads * (kStretch + 1));
        std::atomic<std::int64_t> next{0};
        parallel(pieces(source_.count, kStretch), threads, [&](std::int64_t piece, int thread) {
            const std::int64_t begin = piece * kStretch;
            Word* stage = stages + thread * (kStretch + 1);
            const std::int64_t collected =
                set_.collect(source_.bits, begin, std::min(source_.count, begin + kStretch), table_,
                             wanted_tops_, stage);
            std::memcpy(copy + next.fetch_add(collected), stage,
                        static_cast<std::size_t>(collected) * 4);
        });
        source_ = {copy, matter};
    }

    // The source holds what matters and nothing else.
    void sort_rest() {
        Word* keys = workspace().take<Word>(source_.count);
        Word* spare = workspace().take<Word>(source_.count);
        set_.keys(source_.bits, Dtype::kFloat32, 0, source_.count, keys);
        const Word* sorted = set_.sort(keys, spare, source_.count);
        for (const Cell& cell : cells_) {
            answer(cell, [&](std::int64_t at) { return set_.of_key(sorted[at]); });
            sorted += cell.inside;
        }
    }

    template <class Value>
    void answer(const Cell& cell, const Value& value) {
        for (std::size_t i = cell.first; i < cell.last; ++i)
            values_[ranks_.place[i]] = value(ranks_.rank[i] - cell.before);
    }

    static float float_of(std::uint32_t bits) {
        float value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    }

    const Selection& set_;
    Source source_;
    std::vector<Cell> cells_;  // ascending
    const Ranks& ranks_;
    float* values_;
    int threads_;
    std::int64_t limit_;
    int known_ = 0;  // leading bits of the cells
    Cells table_;
    std::uint8_t* wanted_tops_;
};

}  // namespace

std::int64_t order_statistics(const Elements& x, const std::int64_t* ranks, std::int64_t count,
                              float* values, int threads) {
    const Selection& set = kernels().selection;
    const Workspace::Scope scope(workspace());
    if (x.numel <= kSorted) {
        Word* keys = workspace().take<Word>(x.numel);
        Word* spare = workspace().take<Word>(x.numel);
        const std::int64_t bad = set.keys(x.x, x.dtype, 0, x.numel, keys);
        const Word* sorted = set.sort(keys, spare, x.numel);
        for (std::int64_t i = 0; i < count; ++i) values[i] = set.of_key(sorted[ranks[i]]);
        return bad;
    }
    const Ranks ascending(ranks, count);
    const bool f32 = x.dtype == Dtype::kFloat32;
    std::vector<Cell> cells;
    {
        const Workspace::Scope counted(workspace());
        const std::int64_t* counts = count_tops(x, threads);
        const int exponent_bits = x.dtype == Dtype::kFloat16 ? 5 : 8;
        if (const auto bad = non_finite(counts, tops_of(x.dtype), exponent_bits)) return bad;
        cells = divide_all(counts, f32 ? kTopBits - 1 : 15, ascending);
    }
    if (f32) {
        Narrowing(x, std::move(cells), ascending, values, threads).run();
        return 0;
    }
    for (const Cell& cell : cells)
        for (std::size_t i = cell.first; i < cell.last; ++i)
            values[ascending.place[i]] = value_of(cell.bits, x.dtype);
    return 0;
}

std::int64_t add_quantiles(const Elements& x, std::int64_t size, const std::int64_t* below,
                           const double* fraction, std::int64_t count, double* sums, int threads) {
    const Selection& set = kernels().selection;
    // Stretches that are summed up together, whatever the number of threads.
    const std::int64_t rows = x.numel / size;
    const std::int64_t together = std::clamp<std::int64_t>((1 << 17) / count, 1, rows);
    const Workspace::Scope scope(workspace());
    auto* quantiles = workspace().take<double>(together * count);
    Word* keys = workspace().take<Word>(2 * size * threads);
    std::atomic<std::int64_t> bad{0};
    for (std::int64_t first = 0; first < rows; first += together) {
        const std::int64_t last = std::min(rows, first + together);
        parallel(last - first, threads, [&](std::int64_t row, int thread) {
            Word* row_keys = keys + 2 * size * thread;
            bad += set.keys(x.x, x.dtype, (first + row) * size, size, row_keys);
            const Word* sorted = set.sort(row_keys, row_keys + size, size);
            set.quantiles(sorted, size, below, fraction, count, static_cast<double>(size),
                          quantiles + row * count);
        });
        for (std::int64_t row = 0; row < last - first; ++row)
            for (std::int64_t i = 0; i < count; ++i) sums[i] += quantiles[row * count + i];
    }
    return bad;
}

}  // namespace qmaps
