#include "factored.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "parallel.hpp"

namespace qmaps {
namespace {

// Of rows and of columns, as in qmaps.optim.reductions.
constexpr std::int64_t kRowChunk = 512;
constexpr std::int64_t kColumnChunk = 64;

constexpr std::int64_t kTogether = 32768;             // elements that a thread takes at a time
constexpr std::int64_t kParts = std::int64_t{1} << 20;  // sums of tiles that are kept at a time
constexpr std::int64_t kStrip = 512;                  // columns that are finished at a time

// Add `count` vectors that lie `apart` from each other, as a balanced tree that zeros fill up; the
// sum is left in the first.
void add_vectors(double* part, std::int64_t count, std::int64_t apart, std::int64_t size) {
    std::int64_t half = 1;
    while (2 * half < count) half *= 2;
    for (; half > 0; half /= 2)
        for (std::int64_t k = 0; k < half && k + half < count; ++k) {
            double* to = part + k * apart;
            const double* from = to + half * apart;
            for (std::int64_t i = 0; i < size; ++i) to[i] += from[i];
        }
}

float mean_of(const float* x, std::int64_t count, const Kernels& set) {
    std::vector<double> sums;
    for (std::int64_t at = 0; at < count; at += kRowChunk)
        sums.push_back(set.row_sum(x + at, std::min(kRowChunk, count - at)));
    add_vectors(sums.data(), static_cast<std::int64_t>(sums.size()), 1, 1);
    return static_cast<float>(sums[0] / static_cast<double>(count));
}

// Statistics and factors of one matrix from its sums.
void finish_rows(ParamTask& task, std::int64_t matrix, const double* sums, const Kernels& set) {
    FactoredStates& factored = task.factored;
    float* row = factored.state[0].data + matrix * factored.rows;
    task.rule->blend(row, sums, factored.rows, static_cast<double>(factored.columns), task.scalars);
    task.rule->row_factors(row, factored.rows, mean_of(row, factored.rows, set),
                           factored.row_factor.data() + matrix * factored.rows);
}

void finish_columns(ParamTask& task, std::int64_t matrix, std::int64_t begin, std::int64_t size,
                    const double* sums) {
    FactoredStates& factored = task.factored;
    const std::int64_t at = matrix * factored.columns + begin;
    float* column = factored.state[1].data + at;
    task.rule->blend(column, sums, size, static_cast<double>(factored.rows), task.scalars);
    task.rule->column_factors(column, size, factored.column_factor.data() + at);
}

// Matrices of one tile, a few together.
void take_small(const std::vector<ParamTask*>& tasks, const Kernels& set, int threads) {
    struct Item {
        ParamTask* task;
        std::int64_t begin, end;
    };
    std::vector<Item> items;
    for (ParamTask* task : tasks) {
        const std::int64_t size = task->factored.rows * task->factored.columns;
        const std::int64_t count = task->numel / size;
        const std::int64_t some = std::max<std::int64_t>(1, kTogether / size);
        for (std::int64_t at = 0; at < count; at += some)
            items.push_back({task, at, std::min(count, at + some)});
    }
    parallel(static_cast<std::int64_t>(items.size()), threads, [&](std::int64_t number, int) {
        const auto [task, begin, end] = items[static_cast<std::size_t>(number)];
        const std::int64_t rows = task->factored.rows, columns = task->factored.columns;
        double row_sums[kColumnChunk], column_sums[kRowChunk];
        for (std::int64_t matrix = begin; matrix < end; ++matrix) {
            set.factored_sums(*task, matrix * rows * columns, rows, columns, row_sums, column_sums,
                          step_scratch());
            finish_rows(*task, matrix, row_sums, set);
            finish_columns(*task, matrix, 0, columns, column_sums);
        }
    });
}

// Sums of the tiles of one parameter's matrices: of rows by matrix, chunk of columns and row; of
// columns by matrix, chunk of rows and column.
struct Parts {
    ParamTask* task;
    std::int64_t row_chunks, column_chunks;  // in a column, and in a row
    std::vector<double> rows, columns;

    explicit Parts(ParamTask& of)
        : task(&of), row_chunks(chunks(of.factored.rows, kColumnChunk)),
          column_chunks(chunks(of.factored.columns, kRowChunk)),
          rows(static_cast<std::size_t>(matrices() * column_chunks * of.factored.rows)),
          columns(static_cast<std::size_t>(matrices() * row_chunks * of.factored.columns)) {}

    std::int64_t matrices() const {
        return task->numel / (task->factored.rows * task->factored.columns);
    }
    std::int64_t size() const { return static_cast<std::int64_t>(rows.size() + columns.size()); }
};

void take_large(std::vector<Parts>& all, const Kernels& set, int threads) {
    struct Item {
        Parts* parts;
        std::int64_t matrix, row, column;  // of a tile; in the end a strip, and row -1 for columns
    };
    std::vector<Item> tiles, strips;
    for (Parts& parts : all) {
        const FactoredStates& factored = parts.task->factored;
        for (std::int64_t matrix = 0; matrix < parts.matrices(); ++matrix) {
            for (std::int64_t row = 0; row < parts.row_chunks; ++row)
                for (std::int64_t column = 0; column < parts.column_chunks; ++column)
                    tiles.push_back({&parts, matrix, row, column});
            strips.push_back({&parts, matrix, 0, 0});
            for (std::int64_t at = 0; at < factored.columns; at += kStrip)
                strips.push_back({&parts, matrix, -1, at});
        }
    }
    parallel(static_cast<std::int64_t>(tiles.size()), threads, [&](std::int64_t number, int) {
        const Item& tile = tiles[static_cast<std::size_t>(number)];
        Parts& parts = *tile.parts;
        const std::int64_t rows = parts.task->factored.rows, columns = parts.task->factored.columns;
        const std::int64_t row = tile.row * kColumnChunk, column = tile.column * kRowChunk;
        set.factored_sums(*parts.task, (tile.matrix * rows + row) * columns + column,
                      std::min(kColumnChunk, rows - row), std::min(kRowChunk, columns - column),
                      parts.rows.data() + (tile.matrix * parts.column_chunks + tile.column) * rows +
                          row,
                      parts.columns.data() + (tile.matrix * parts.row_chunks + tile.row) * columns +
                          column,
                      step_scratch());
    });
    parallel(static_cast<std::int64_t>(strips.size()), threads, [&](std::int64_t number, int) {
        const Item& strip = strips[static_cast<std::size_t>(number)];
        Parts& parts = *strip.parts;
        const std::int64_t rows = parts.task->factored.rows, columns = parts.task->factored.columns;
        if (strip.row == 0) {
            double* sums = parts.rows.data() + strip.matrix * parts.column_chunks * rows;
            add_vectors(sums, parts.column_chunks, rows, rows);
            finish_rows(*parts.task, strip.matrix, sums, set);
            return;
        }
        const std::int64_t size = std::min(kStrip, columns - strip.column);
        double* sums =
            parts.columns.data() + strip.matrix * parts.row_chunks * columns + strip.column;
        add_vectors(sums, parts.row_chunks, columns, size);
        finish_columns(*parts.task, strip.matrix, strip.column, size, sums);
    });
}

}  // namespace

void arrange_factored(ParamTask& task, const std::vector<std::int64_t>& shape) {
    FactoredStates& factored = task.factored;
    const std::size_t count = shape.size();
    if (task.rule->factoring == kProduct) {
        if (count < 2) throw std::invalid_argument("rows and columns need two dimensions");
        factored.rows = shape[count - 2];
        factored.columns = shape[count - 1];
        factored.row_factor.resize(static_cast<std::size_t>(task.numel / factored.columns));
        factored.column_factor.resize(static_cast<std::size_t>(task.numel / factored.rows));
    } else {
        if (count > kMaxParts) throw std::invalid_argument("slices need at most 8 dimensions");
        std::int64_t divisor = task.numel;
        for (const std::int64_t size : shape) {
            divisor /= size;
            factored.slices.parts.push_back({divisor, size, 0, -1});
        }
        if (count == 0) factored.slices.parts.push_back({1, 1, 0, -1});
    }
}

void take_factored(std::vector<ParamTask>& tasks, const Kernels& set, int threads) {
    std::vector<ParamTask*> small;
    std::vector<Parts> large;
    std::int64_t size = 0;
    for (ParamTask& task : tasks) {
        if (task.rule->factoring == kNotFactored) continue;
        for (FactoredState& state : task.factored.state) {
            if (!state.codec.codebook) continue;
            state.decoded.resize(static_cast<std::size_t>(state.size));
            state.data = state.decoded.data();
            DequantizeTask decoding;
            decoding.codec = state.codec;
            decoding.y = state.data;
            decoding.numel = state.size;
            dequantize(decoding, threads);
        }
        if (task.rule->factoring != kProduct) continue;
        if (task.factored.rows <= kColumnChunk && task.factored.columns <= kRowChunk) {
            small.push_back(&task);
            continue;
        }
        large.emplace_back(task);
        size += large.back().size();
        if (size < kParts) continue;
        take_large(large, set, threads);
        large.clear();
        size = 0;
    }
    take_large(large, set, threads);
    take_small(small, set, threads);
}

Slices::Slices(ParamTask& task, int threads) : task_(task) {
    Codec& maxima = task.factored.maxima;
    maxima.geometry = &task.factored.slices;
    reserve_fresh(maxima);
    maxima_ = std::make_unique<PrivateMaxima>(maxima, task.numel, threads);
}

void Slices::store() {
    maxima_->merge();
    Codec& maxima = task_.factored.maxima;
    int part = 0;
    for (FactoredState& state : task_.factored.state)
        std::memcpy(state.data, maxima.fresh[part++],
                    static_cast<std::size_t>(state.size) * sizeof(float));
    maxima.fresh_memory = {};
}

void store_factored(std::vector<ParamTask>& tasks, int threads) {
    for (ParamTask& task : tasks)
        for (FactoredState& state : task.factored.state) {
            if (!state.codec.codebook) continue;
            QuantizeTask encoding;
            encoding.codec = state.codec;
            encoding.x = state.data;
            encoding.numel = state.size;
            quantize(encoding, threads);
            state.decoded = {};
        }
}

}  // namespace qmaps
