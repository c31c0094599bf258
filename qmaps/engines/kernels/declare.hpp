// How the headers in rules/ declare their rules. declarations.py reads these declarations too, so
// that the order of scalars is stated here alone: each begins a line and holds no comment.
//
//   QMAPS_SCALARS(sgd, weight_decay, momentum, step_size)
//       What `step_scalars` of the optimizers with native_rule "sgd" are called, in the order in which
//       engines pass them: a rule reads c[sgd_scalars::momentum].
//   QMAPS_SAME_SCALARS(adamw_factor, adamw)
//       The same scalars as another rule's.
//   QMAPS_RULE(sgd, "momentum_buffer", kNotFactored, kNoNorms, Sgd<true>)
//       A rule with one set of states: its name; the states, with the word "factored" last for all
//       that have fewer elements than the parameter; what factored statistics are (rules/factored.hpp); whether it
//       takes norms (rules/layerwise.hpp); its C++ type.

constexpr bool kNoNorms = false, kTakesNorms = true;

#define QMAPS_SCALARS(rule, ...)                                                                  \
    struct rule##_scalars {                                                                       \
        enum : int { __VA_ARGS__, kScalars };                                                     \
        static constexpr const char* kScalarNames = #__VA_ARGS__;                                 \
    };

#define QMAPS_SAME_SCALARS(rule, other) using rule##_scalars = other##_scalars;

template <class R>
struct Declared;

// Whether a rule is `begin`, which makes the new states, and then `finish`, so that CUDA can do
// without checks after it has seen the states of some elements; see qmaps/cuda/src/step.cuh.
template <class R>
constexpr bool kInParts = false;

#define QMAPS_RULE(rule, states, factoring, norms, ...)                                           \
    template <>                                                                                   \
    struct Declared<__VA_ARGS__> {                                                                \
        using Scalars = rule##_scalars;                                                           \
        static constexpr const char* kName = #rule;                                               \
        static constexpr const char* kStateNames = states;                                        \
        static constexpr const char* kType = #__VA_ARGS__;                                        \
        static constexpr Factoring kFactoring = factoring;                                        \
        static constexpr bool kNorms = norms;                                                     \
    };                                                                                            \
    static_assert(words_in(states) == __VA_ARGS__::kStates + ((factoring) != kNotFactored ? 1 : 0), \
                  "rule " #rule " names as many states as it has");

constexpr int words_in(const char* text) {
    int count = 0;
    for (; *text; ++text) count += *text != ' ' && (text[1] == ' ' || text[1] == 0);
    return count;
}

template <class R>
constexpr Factoring factoring_of = Declared<R>::kFactoring;
