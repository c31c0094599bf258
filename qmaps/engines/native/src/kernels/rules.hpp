// Every rule by the name that optimizers ask for.

// A rule over a range: the new parameter where kWrite says so, and the states of kWanted. What
// neither needs the compiler leaves out.
template <class R, bool kWrite, unsigned kWanted>
inline void run(float* __restrict p, const float* __restrict g, float* const* s,
                std::int64_t count, const float* c, Ahead& prefetches) {
    constexpr int kPlace = R::kStates;  // of what factored statistics come to
    constexpr bool kIsFactored = factoring_of<R> != kNotFactored;
    constexpr bool kLeaves = kWrite && factoring_of<R> == kSmallest;
    constexpr unsigned kRead = R::reads(kWanted) | (kIsFactored ? 1u << kPlace : 0u);
    constexpr unsigned kStore = kWanted | (kLeaves ? 1u << kPlace : 0u);
    static_assert(kPlace + kIsFactored <= kMaxStates);
    const R rule(c);
    float* __restrict s0 = s[0];
    float* __restrict s1 = s[1];
    float* __restrict s2 = s[2];
    float* __restrict s3 = s[3];
    const auto element = [&](std::int64_t i) ALWAYS_INLINE {
        float state[kMaxStates] = {};
        if (kRead & 1u) state[0] = s0[i];
        if (kRead & 2u) state[1] = s1[i];
        if (kRead & 4u) state[2] = s2[i];
        if (kRead & 8u) state[3] = s3[i];
        const float moved = rule(p[i], g[i], state);
        if (kWrite) p[i] = moved;
        if (kStore & 1u) s0[i] = state[0];
        if (kStore & 2u) s1[i] = state[1];
        if (kStore & 4u) s2[i] = state[2];
        if (kStore & 8u) s3[i] = state[3];
    };
    Ahead ahead = prefetches;
    std::int64_t i = 0;
    for (; i + 64 <= count; i += 64) {
        ask(ahead, 2 * ahead.unit);  // rules wait for the divider anyway
        QMAPS_SIDE_BY_SIDE(2)
        for (std::int64_t j = i; j < i + 64; ++j) element(j);
    }
    for (; i < count; ++i) element(i);
    prefetches = ahead;
}

template <class R>
inline void apply(float* p, const float* g, float* const* s, std::int64_t count, const float* c,
                  Ahead& ahead) {
    run<R, true, (1u << R::kStates) - 1>(p, g, s, count, c, ahead);
}

// The states that are made for the wanted ones: one of them, or all of the rule's. Fewer sets take
// less time to compile.
template <class R>
constexpr unsigned made_for(unsigned wanted) {
    constexpr unsigned kAll = (1u << R::kStates) - 1;
    wanted &= kAll;
    return wanted & (wanted - 1) ? kAll : wanted;
}

// A rule without its parameter.
template <class R, unsigned kWanted>
inline void run_for(const float* p, const float* g, float* const* s, std::int64_t count,
                    const float* c, Ahead& ahead) {
    run<R, false, made_for<R>(kWanted)>(const_cast<float*>(p), g, s, count, c, ahead);
}

template <class R>
inline void advance(const float* p, const float* g, float* const* s, std::int64_t count,
                    const float* c, unsigned wanted, Ahead& ahead) {
    switch (made_for<R>(wanted)) {
        case 0: return;
        case 1: return run_for<R, 1>(p, g, s, count, c, ahead);
        case 2: return run_for<R, 2>(p, g, s, count, c, ahead);
        case 4: return run_for<R, 4>(p, g, s, count, c, ahead);
        case 8: return run_for<R, 8>(p, g, s, count, c, ahead);
        default: return run_for<R, 15>(p, g, s, count, c, ahead);
    }
}

template <class R>
inline unsigned reads(unsigned wanted) {
    return R::reads(made_for<R>(wanted));
}

template <class R>
inline void measure(const float* __restrict p, const float* __restrict g, float* const* s,
                    std::int64_t count, const float* c, float* __restrict out) {
    const R rule(c);
    const unsigned read = R::measures(c);
    for (std::int64_t i = 0; i < count; ++i) {
        float state[kMaxStates] = {};
        for (int k = 0; k < R::kStates; ++k)
            if (read >> k & 1u) state[k] = s[k][i];
        if (factoring_of<R> != kNotFactored) state[R::kStates] = s[R::kStates][i];
        out[i] = rule.measured(p[i], g[i], state);
    }
}

template <class R>
inline void squared(const float* __restrict g, std::int64_t count, const float* c,
                    float* __restrict out) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = R::squared(g[i], c);
}

template <class R>
inline void blend(float* __restrict statistic, const double* __restrict sums, std::int64_t size,
                  double count, const float* c) {
    for (std::int64_t i = 0; i < size; ++i)
        statistic[i] = R::blended(statistic[i], static_cast<float>(sums[i] / count), c);
}

template <class R>
inline void row_factors(const float* __restrict statistic, std::int64_t size, float mean,
                        float* __restrict out) {
    for (std::int64_t i = 0; i < size; ++i) out[i] = R::row_factor(relative(statistic[i], mean));
}

template <class R>
inline void column_factors(const float* __restrict statistic, std::int64_t size,
                           float* __restrict out) {
    for (std::int64_t i = 0; i < size; ++i) out[i] = R::column_factor(statistic[i]);
}

template <class R>
constexpr Rule rule() {
    using D = Declared<R>;
    static_assert(D::Scalars::kScalars <= kMaxScalars);
    Rule made{};
    made.name = D::kName;
    made.state_names = D::kStateNames;
    made.type = D::kType;
    made.scalar_names = D::Scalars::kScalarNames;
    made.states = R::kStates;
    made.scalars = D::Scalars::kScalars;
    made.apply = apply<R>;
    made.advance = advance<R>;
    made.reads = reads<R>;
    made.factoring = D::kFactoring;
    if constexpr (factoring_of<R> == kProduct) {
        made.squared = squared<R>;
        made.blend = blend<R>;
        made.row_factors = row_factors<R>;
        made.column_factors = column_factors<R>;
    }
    if constexpr (D::kNorms) {
        static_assert(R::kSettled <= kMaxScalars);
        made.measured = measure<R>;
        made.measures = R::measures;
        made.settle = R::settle;
    }
    return made;
}

#define QMAPS_ENTRY(...) rule<__VA_ARGS__>(),
static constexpr Rule kRules[] = {QMAPS_EVERY_RULE(QMAPS_ENTRY)};
#undef QMAPS_ENTRY
