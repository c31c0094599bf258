#include "least_squares.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "kernels.hpp"

namespace qmaps {
namespace {

constexpr double kTiny = std::numeric_limits<double>::min();

// Ascending unsigned order; zeros of both signs are equal.
std::uint32_t sort_key(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (bits == 0x80000000u) bits = 0;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

double value_of(std::uint32_t key) {
    const std::uint32_t bits = key & 0x80000000u ? key & 0x7FFFFFFFu : ~key;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

struct Numbered {
    std::uint32_t key, index;
};

// By radix, 11 bits at a time; returns which of the two arrays holds the result.
Numbered* sorted(Numbered* from, Numbered* to, std::int64_t count) {
    constexpr int kDigits = 3, kBits = 11, kSize = 1 << kBits;
    std::vector<std::int64_t> starts(kDigits * kSize, 0);
    for (std::int64_t i = 0; i < count; ++i)
        for (int d = 0; d < kDigits; ++d)
            ++starts[d * kSize + (from[i].key >> (d * kBits) & (kSize - 1))];
    for (int d = 0; d < kDigits; ++d) {
        std::int64_t* start = starts.data() + d * kSize;
        std::int64_t before = 0;
        bool all_in_one = false;
        for (int b = 0; b < kSize; ++b) {
            const std::int64_t here = start[b];
            all_in_one |= here == count;
            start[b] = before;
            before += here;
        }
        if (all_in_one) continue;
        for (std::int64_t i = 0; i < count; ++i)
            to[start[from[i].key >> (d * kBits) & (kSize - 1)]++] = from[i];
        std::swap(from, to);
    }
    return from;
}

// The first element above `value`, from a guess that is close.
std::int64_t first_above(const double* x, std::int64_t count, double value, std::int64_t guess) {
    std::int64_t low = guess, high = guess, step = 16;
    while (low > 0 && x[low - 1] > value) {
        high = low - 1;
        low = std::max<std::int64_t>(0, low - step);
        step *= 4;
    }
    while (high < count && !(x[high] > value)) {
        low = high + 1;
        high = std::min(count, high + step);
        step *= 4;
    }
    return std::upper_bound(x + low, x + high, value) - x;
}

struct Moments {
    std::vector<std::int64_t> cut;
    std::vector<double> w, wx;
    double error = 0;
};

// Split the data among the codes and sum up each one's share.
void divide(const SortedData& data, const double* codebook, int size, Moments& at) {
    at.cut.front() = 0;
    at.cut.back() = data.count;
    for (int c = 0; c + 1 < size; ++c)
        at.cut[c + 1] = first_above(data.x, data.count, (codebook[c] + codebook[c + 1]) / 2,
                                    at.cut[c + 1]);
    at.error = 0;
    for (int c = 0; c < size; ++c) {
        const std::int64_t from = at.cut[c], to = at.cut[c + 1];
        at.w[c] = data.w[to] - data.w[from];
        at.wx[c] = data.wx[to] - data.wx[from];
        const double wxx = data.wxx[to] - data.wxx[from];
        const double code = codebook[c];
        at.error += (wxx - 2 * code * at.wx[c]) + code * code * at.w[c];
    }
}

}  // namespace

void sort_data(const float* values, const double* weights, const SortedData& data) {
    const auto count = static_cast<std::size_t>(data.count);
    const std::unique_ptr<Numbered[]> memory(new Numbered[2 * count]);
    for (std::size_t i = 0; i < count; ++i)
        memory[i] = {sort_key(values[i]), static_cast<std::uint32_t>(i)};
    const Numbered* order = sorted(memory.get(), memory.get() + count, data.count);
    double w = 0, wx = 0, wxx = 0;
    data.w[0] = data.wx[0] = data.wxx[0] = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const double x = value_of(order[i].key);
        const double weight = weights ? weights[order[i].index] : 1.0;
        data.x[i] = x;
        data.w[i + 1] = w += weight;
        data.wx[i + 1] = wx += weight * x;
        data.wxx[i + 1] = wxx += weight * x * x;
    }
}

std::vector<std::int64_t> partition(const double* w, const double* wx, const double* wxx,
                                    std::int64_t count, int size) {
    // Layer l: the least cost of l + 1 intervals up to each end, and where the last one starts.
    // Ends are worked on kEnds at a time, for all layers: their costs then stay in cache.
    const auto layer = static_cast<std::size_t>(count + kEnds);
    const std::unique_ptr<double[]> best(new double[size * layer]);
    const std::unique_ptr<std::int32_t[]> start(new std::int32_t[size * layer]);
    const std::unique_ptr<double[]> cost(new double[(count + kEnds) * kEnds]);
    const LeastSquares& set = kernels().least_squares;
    for (std::int64_t first = 0; first < count; first += kEnds) {
        const std::int64_t rows = std::min(count, first + kEnds);
        set.interval_costs(w, wx, wxx, count, first, rows, cost.get());
        std::memcpy(best.get() + first, cost.get(), kEnds * sizeof(double));
        for (int l = 1; l < size; ++l)
            set.least_sums(best.get() + (l - 1) * layer, cost.get(), rows,
                           best.get() + l * layer + first, start.get() + l * layer + first);
    }
    std::vector<std::int64_t> ends{count - 1};
    for (int l = size - 1; l > 0; --l) ends.push_back(start[l * layer + ends.back()]);
    return ends;
}

void refine(const SortedData& data, double* codebook, int size, int sweeps, double tolerance) {
    const auto codes = static_cast<std::size_t>(size);
    Moments now{std::vector<std::int64_t>(codes + 1, 0), std::vector<double>(codes),
                std::vector<double>(codes)};
    divide(data, codebook, size, now);
    Moments next = now;
    std::vector<double> moved(codes);
    for (int sweep = 0; sweep < sweeps; ++sweep) {
        for (std::size_t c = 0; c < codes; ++c)
            moved[c] = now.w[c] > 0 ? now.wx[c] / std::max(now.w[c], kTiny) : codebook[c];
        std::sort(moved.begin(), moved.end());
        divide(data, moved.data(), size, next);
        if (!(next.error < now.error)) return;
        const bool done = now.error - next.error <= tolerance * now.error;
        std::copy(moved.begin(), moved.end(), codebook);
        std::swap(now, next);
        next.cut = now.cut;
        if (done) return;
    }
}

}  // namespace qmaps
