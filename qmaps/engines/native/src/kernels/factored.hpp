// States that have fewer elements than their parameter; qmaps/engines/kernels/rules/factored.hpp.

// Sums of a tile, over each row and over each column, in the order of qmaps.optim.reductions.

// The lanes as a balanced tree. Those from `count` on are 0, which nothing is added to.
inline double lanes_added(double* lane, std::int64_t count) {
    int half = kRowLanes / 2;
    while (half >= count && half > 0) half /= 2;
    for (; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
    return lane[0];
}

static void factored_sums(const ParamTask& task, std::int64_t at, std::int64_t rows,
                      std::int64_t columns, double* __restrict row_sums,
                      double* __restrict column_sums, StepScratch& memory) {
    for (std::int64_t i = 0; i < columns; ++i) column_sums[i] = 0;
    for (std::int64_t row = 0; row < rows; ++row, at += task.factored.columns) {
        const float* g = floats(task.g, task.g_dtype, at, columns, memory.g);
        const float* __restrict x = memory.p;
        task.rule->squared(g, columns, task.scalars, memory.p);
        double lane[kRowLanes] = {};
        std::int64_t i = 0;
        for (; i + kRowLanes <= columns; i += kRowLanes)
            for (int j = 0; j < kRowLanes; ++j) {
                const double value = x[i + j];
                lane[j] += value;
                column_sums[i + j] += value;
            }
        for (int j = 0; i + j < columns; ++j) {
            const double value = x[i + j];
            lane[j] += value;
            column_sums[i + j] += value;
        }
        row_sums[row] = lanes_added(lane, columns);
    }
}

static double row_sum(const float* x, std::int64_t count) {
    double lane[kRowLanes] = {};
    std::int64_t i = 0;
    for (; i + kRowLanes <= count; i += kRowLanes)
        for (int j = 0; j < kRowLanes; ++j) lane[j] += x[i + j];
    for (int j = 0; i + j < count; ++j) lane[j] += x[i + j];
    return lanes_added(lane, count);
}

// What factored statistics come to for elements [at, at + count).
inline void factored_values(const ParamTask& task, std::int64_t at, std::int64_t count,
                        float* __restrict out) {
    const FactoredStates& factored = task.factored;
    if (task.rule->factoring == kSmallest) {
        ScaleView view;
        for (const Part& part : factored.slices.parts) {
            PartView& seen = view.part[view.parts];
            seen.divisor = part.divisor;
            seen.count = part.count;
            seen.values = factored.state[view.parts++].data;
        }
        element_scales(view, at, count, out);
        return;
    }
    std::int64_t row = at / factored.columns, column = at % factored.columns;
    std::int64_t within = row % factored.rows;
    const float* factors = factored.row_factor.data();
    const float* __restrict columns = factored.column_factor.data() + row / factored.rows * factored.columns;
    for (std::int64_t i = 0; i < count;) {
        const std::int64_t rest = factored.columns - column;
        const std::int64_t some = rest < count - i ? rest : count - i;
        const float factor = factors[row];
        for (std::int64_t j = 0; j < some; ++j) out[i + j] = factor * columns[column + j];
        i += some;
        column = 0;
        ++row;
        if (++within == factored.rows) {
            within = 0;
            columns += factored.columns;
        }
    }
}
