// Errors of Adam updates computed from decoded moments.

// A decoded moment: where it lies, or in `out`.
inline const float* decoded_moment(const StateTask& state, const ScaleView& view, std::int64_t at,
                                   std::int64_t count, float* out, Scratch& scratch) {
    if (!state.codec.codebook) return state.data + at;
    decode_tile(state.codec, view, at, count, out, scratch);
    return out;
}

inline void adam_updates(const float* m, const float* v, float eps, std::int64_t count, float* u) {
    for (std::int64_t i = 0; i < count; ++i) u[i] = adam_update(m[i], v[i], eps);
}

inline std::int64_t count_collapsed(const float* m, const float* v, const float* exact_v,
                                    std::int64_t count) {
    int count_of_zeros = 0;
    for (std::int64_t i = 0; i < count; ++i)
        count_of_zeros += collapsed(m[i], v[i], exact_v[i]) ? 1 : 0;
    return count_of_zeros;
}

// Both errors of kLanes elements: |u - w| and |u - w| / |u|, the latter -0 where u is 0.
struct BothErrors {
    Doubles absolute[kVectors], relative[kVectors];
    Longs nonzero[kVectors];
};

inline void errors_of(const float* exact, const float* approximate, BothErrors& errors) {
    for (int k = 0; k < kVectors; ++k) {
        Doubles u, w;
        read_doubles(exact + k * kWide, &u);
        read_doubles(approximate + k * kWide, &w);
        const Longs nonzero = u != 0.0;
        const Doubles error = QMAPS_ABS(u - w);
        const Doubles fraction = QMAPS_ABS(error / QMAPS_ABS(u));
        const Longs left_out = ~nonzero & static_cast<std::int64_t>(0x8000000000000000ull);
        errors.absolute[k] = error;
        errors.relative[k] = (Doubles)((Longs)QMAPS_WHERE(nonzero, fraction) | left_out);
        errors.nonzero[k] = nonzero;
    }
}

inline void count_bins(const std::uint32_t* bits, std::int64_t count, std::uint32_t (*bins)[kBins]) {
    std::int64_t i = 0;
    for (; i + 2 <= count; i += 2) {
        ++bins[0][bits[i] >> kBinShift];
        ++bins[1][bits[i + 1] >> kBinShift];
    }
    if (i < count) ++bins[0][bits[i] >> kBinShift];
}

static void update_errors(const UpdateTask& task, std::int64_t begin, std::int64_t end,
                          std::uint32_t* absolute, std::uint32_t* relative, UpdateSums& sums,
                          UpdateBins& bins, StepScratch& memory) {
    ScaleView views[2];
    if (task.first.codec.codebook) views[0] = stored(task.first.codec);
    if (task.second.codec.codebook) views[1] = stored(task.second.codec);
    struct {
        Lanes absolute, relative;
        LaneCounts nonzero;
    } lanes;
    std::int64_t collapsed = 0;
    for (std::int64_t at = begin; at < end; at += kTile) {
        const std::int64_t count = end - at < kTile ? end - at : kTile;
        const float* m = decoded_moment(task.first, views[0], at, count, memory.state[0],
                                        memory.scratch);
        const float* v = decoded_moment(task.second, views[1], at, count, memory.state[1],
                                        memory.scratch);
        adam_updates(m, v, task.eps, count, memory.p);
        collapsed += count_collapsed(m, v, task.v + at, count);
        std::uint32_t* to_absolute = absolute + at;
        std::uint32_t* to_relative = relative + at;
        auto sum = lanes;
        in_lanes(task.exact + at, memory.p, count,
                 [&](const float* exact, const float* approximate) __attribute__((always_inline)) {
            BothErrors errors;
            errors_of(exact, approximate, errors);
            Floats narrow[2][kVectors];
            for (int k = 0; k < kVectors; ++k) {
                narrow[0][k] = QMAPS_NARROW(errors.absolute[k]);
                narrow[1][k] = QMAPS_NARROW(errors.relative[k]);
                sum.absolute.part[k] += QMAPS_WIDEN(narrow[0][k]);
                sum.relative.part[k] += QMAPS_WIDEN(narrow[1][k]);
                sum.nonzero.part[k] -= errors.nonzero[k];
            }
            const std::int64_t rest = absolute + at + count - to_absolute;
            if (rest >= kLanes) {
                __builtin_memcpy(to_absolute, narrow[0], sizeof narrow[0]);
                __builtin_memcpy(to_relative, narrow[1], sizeof narrow[1]);
            } else {
                __builtin_memcpy(to_absolute, narrow[0], static_cast<std::size_t>(rest) * 4);
                __builtin_memcpy(to_relative, narrow[1], static_cast<std::size_t>(rest) * 4);
            }
            to_absolute += kLanes;
            to_relative += kLanes;
        });
        lanes = sum;
        count_bins(absolute + at, count, bins.absolute);
        count_bins(relative + at, count, bins.relative);
    }
    sums = {sum_of(lanes.absolute), sum_of(lanes.relative), sum_of(lanes.nonzero), collapsed};
}

static std::int64_t gather_bin(const std::uint32_t* bits, std::int64_t count, std::uint32_t bin,
                               std::uint32_t* to) {
    std::int64_t gathered = 0, i = 0;
#if defined(__AVX512F__)
    const __m512i wanted = _mm512_set1_epi32(static_cast<int>(bin));
    for (; i + 16 <= count; i += 16) {
        const __m512i some = _mm512_loadu_si512(bits + i);
        const __mmask16 here =
            _mm512_cmpeq_epi32_mask(_mm512_srli_epi32(some, kBinShift), wanted);
        if (here == 0) continue;
        _mm512_storeu_si512(to + gathered, _mm512_maskz_compress_epi32(here, some));
        gathered += __builtin_popcount(here);
    }
#endif
    for (; i < count; ++i) {
        to[gathered] = bits[i];
        gathered += bits[i] >> kBinShift == bin ? 1 : 0;
    }
    return gathered;
}

static void update_grid(const UpdateTask& task, std::int64_t begin, std::int64_t end,
                        CellSums* cells, StepScratch& memory) {
    const ScaleView views[2] = {stored(task.first.codec), stored(task.second.codec)};
    const int columns = task.second.codec.codebook->size;
    alignas(64) std::uint8_t first[kTile + 64], second[kTile + 64];
    alignas(64) double absolute[kTile + kLanes], relative[kTile + kLanes];
    for (std::int64_t at = begin; at < end; at += kTile) {
        const std::int64_t count = end - at < kTile ? end - at : kTile;
        unpack(task.first.codec.packed, task.first.codec.codebook->bits, at, count, first);
        unpack(task.second.codec.packed, task.second.codec.codebook->bits, at, count, second);
        float* m = memory.state[0];
        float* v = memory.state[1];
        decode_codes(task.first.codec, views[0], first, false, at, count, m,
                     memory.scratch);
        decode_codes(task.second.codec, views[1], second, false, at, count, v,
                     memory.scratch);
        adam_updates(m, v, task.eps, count, memory.p);
        std::int64_t to = 0;
        in_lanes(task.exact + at, memory.p, count,
                 [&](const float* exact, const float* approximate) __attribute__((always_inline)) {
            BothErrors errors;
            errors_of(exact, approximate, errors);
            __builtin_memcpy(absolute + to, errors.absolute, sizeof errors.absolute);
            __builtin_memcpy(relative + to, errors.relative, sizeof errors.relative);
            to += kLanes;
        });
        for (std::int64_t i = 0; i < count; ++i) {
            CellSums& cell = cells[first[i] * columns + second[i]];
            cell.absolute += absolute[i];
            cell.relative += relative[i];
            ++cell.count;
            cell.nonzero += task.exact[at + i] != 0.0f ? 1 : 0;
        }
    }
}

static constexpr MetricKernels kMetrics = {measure_local, measure_fresh, update_errors, gather_bin,
                                           update_grid};
