// Every rule by the name that optimizers ask for.

// A rule over a range: the new parameter where kWrite says so, and the states of kWanted. What
// neither needs the compiler leaves out.
template <class R, bool kWrite, unsigned kWanted>
inline void run(float* __restrict p, const float* __restrict g, float* const* s,
                std::int64_t count, const float* c, Ahead& given) {
    constexpr unsigned kRead = R::reads(kWanted);
    const R rule(c);
    float* __restrict s0 = s[0];
    float* __restrict s1 = s[1];
    float* __restrict s2 = s[2];
    const auto element = [&](std::int64_t i) ALWAYS_INLINE {
        float state[kMaxStates] = {};
        if (kRead & 1u) state[0] = s0[i];
        if (kRead & 2u) state[1] = s1[i];
        if (kRead & 4u) state[2] = s2[i];
        const float moved = rule(p[i], g[i], state);
        if (kWrite) p[i] = moved;
        if (kWanted & 1u) s0[i] = state[0];
        if (kWanted & 2u) s1[i] = state[1];
        if (kWanted & 4u) s2[i] = state[2];
    };
    Ahead ahead = given;
    std::int64_t i = 0;
    for (; i + 64 <= count; i += 64) {
        ask(ahead, 2 * ahead.unit);  // rules wait for the divider anyway
        for (std::int64_t j = i; j < i + 64; ++j) element(j);
    }
    for (; i < count; ++i) element(i);
    given = ahead;
}

template <class R>
inline void apply(float* p, const float* g, float* const* s, std::int64_t count, const float* c,
                  Ahead& ahead) {
    run<R, true, (1u << R::kStates) - 1>(p, g, s, count, c, ahead);
}

template <class R>
inline void advance(const float* p, const float* g, float* const* s, std::int64_t count,
                    const float* c, unsigned wanted, Ahead& ahead) {
    using Run =
        void (*)(float*, const float*, float* const*, std::int64_t, const float*, Ahead&);
    static constexpr Run kRuns[] = {
        run<R, false, 0>, run<R, false, 1>, run<R, false, 2>, run<R, false, 3>,
        run<R, false, 4>, run<R, false, 5>, run<R, false, 6>, run<R, false, 7>,
    };
    kRuns[wanted](const_cast<float*>(p), g, s, count, c, ahead);
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
        out[i] = rule.measured(p[i], g[i], state);
    }
}

template <class R>
constexpr Rule rule() {
    return {R::kName, R::kStateNames, R::kStates, R::kScalars, apply<R>, advance<R>, R::reads,
            nullptr, nullptr, nullptr};
}

// One that takes norms.
template <class R>
constexpr Rule layerwise() {
    static_assert(R::kRatio < kMaxScalars);
    Rule made = rule<R>();
    made.measured = measure<R>;
    made.measures = R::measures;
    made.ratio = R::ratio;
    return made;
}

static constexpr Rule kRules[] = {
    rule<Adagrad>(),
    rule<Adam>(),
    rule<AdamW>(),
    rule<AdEMAMix>(),
    layerwise<Lamb>(),
    layerwise<Lars<false>>(),
    layerwise<Lars<true>>(),
    rule<Lion>(),
    rule<RmsProp<false, false>>(),
    rule<RmsProp<true, false>>(),
    rule<RmsProp<false, true>>(),
    rule<RmsProp<true, true>>(),
    rule<Sgd<false>>(),
    rule<Sgd<true>>(),
};
