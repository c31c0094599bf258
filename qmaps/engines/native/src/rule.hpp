// An optimizer's update rule, as the step sees it.
#pragma once

#include <cstdint>

#include "generated/enumerations.hpp"

namespace qmaps {

struct Ahead;

inline constexpr int kMaxStates = 4;
inline constexpr int kMaxScalars = 24;

// A rule works on `count` elements of float32 memory: p the parameter, g its gradient, s[k] the
// k-th state, c the step's scalars in the order of the rule's QMAPS_SCALARS. Each line of a rule is the
// line of the Python class of that name, so that both give the same bits. A rule with several
// sets of states has an entry for each.
struct Rule {
    const char* name;
    const char* state_names;  // with spaces between them
    const char* type;
    const char* scalar_names;  // with commas between them
    int states;
    int scalars;
    // The whole update, in place.
    void (*apply)(float* p, const float* g, float* const* s, std::int64_t count, const float* c,
                  Ahead& ahead);
    // The new states alone; only the wanted ones (bit k) need be right.
    void (*advance)(const float* p, const float* g, float* const* s, std::int64_t count,
                    const float* c, unsigned wanted, Ahead& ahead);
    // The states that `advance` reads to make the wanted ones.
    unsigned (*reads)(unsigned wanted);
    // Of rules that take norms, null for others: the elements whose norm counts, into `out`; the
    // states that this reads; and what it makes of both sums of squares, the last of the scalars.
    void (*measured)(const float* p, const float* g, float* const* s, std::int64_t count,
                     const float* c, float* out);
    unsigned (*measures)(const float* c);
    void (*settle)(double param_squares, double measured_squares, double count, float* c);
    // Of rules with factored statistics, whose number for each element is s[states]. The others belong to
    // products alone: what means are taken of; statistics that take in means, which are sums over
    // `count`; factors of rows, whose statistics have this mean, and of columns.
    Factoring factoring;
    void (*squared)(const float* g, std::int64_t count, const float* c, float* out);
    void (*blend)(float* statistic, const double* sums, std::int64_t size, double count, const float* c);
    void (*row_factors)(const float* statistic, std::int64_t size, float mean, float* out);
    void (*column_factors)(const float* statistic, std::int64_t size, float* out);
};

// The rules of one instruction set.
struct Rules {
    const Rule* rule;
    int count;
};

}  // namespace qmaps
