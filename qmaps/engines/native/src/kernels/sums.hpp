// Sums of errors over tiles. One vector type of the instruction set's own width serves all lanes,
// so that every set adds the same numbers in the same order.

#if defined(__AVX512F__)
constexpr int kWide = 8;
#elif defined(__AVX2__)
constexpr int kWide = 4;
#else
constexpr int kWide = 2;
#endif
constexpr int kVectors = kLanes / kWide;

typedef double Doubles __attribute__((vector_size(kWide * 8)));
typedef float Floats __attribute__((vector_size(kWide * 4)));
typedef std::int64_t Longs __attribute__((vector_size(kWide * 8)));

// Macros, for functions of vectors would have an instruction set's calling convention.
#define QMAPS_ABS(a) ((Doubles)((Longs)(a) & 0x7FFFFFFFFFFFFFFFll))
#define QMAPS_WHERE(mask, a) ((Doubles)((mask) & (Longs)(a)))

// Compilers take 512-bit conversions apart where they are not told.
#if defined(__AVX512F__)
#define QMAPS_WIDEN(a) ((Doubles)_mm512_cvtps_pd((__m256)(a)))
#define QMAPS_NARROW(a) ((Floats)_mm512_cvtpd_ps((__m512d)(a)))
#else
#define QMAPS_WIDEN(a) __builtin_convertvector(a, Doubles)
#define QMAPS_NARROW(a) __builtin_convertvector(a, Floats)
#endif

// One number per lane.
struct Lanes {
    Doubles part[kVectors] = {};
};
struct LaneCounts {
    Longs part[kVectors] = {};
};

inline double sum_of(const Lanes& lanes) {
    double value[kLanes], total = 0;
    __builtin_memcpy(value, lanes.part, sizeof value);
    for (int i = 0; i < kLanes; ++i) total += value[i];
    return total;
}
inline double largest_of(const Lanes& lanes) {
    double value[kLanes], most = 0;
    __builtin_memcpy(value, lanes.part, sizeof value);
    for (int i = 0; i < kLanes; ++i) most = value[i] > most ? value[i] : most;
    return most;
}
inline std::int64_t sum_of(const LaneCounts& lanes) {
    std::int64_t value[kLanes], total = 0;
    __builtin_memcpy(value, lanes.part, sizeof value);
    for (int i = 0; i < kLanes; ++i) total += value[i];
    return total;
}

inline void read_doubles(const float* from, Doubles* to) {
    Floats narrow;
    __builtin_memcpy(&narrow, from, sizeof narrow);
    *to = QMAPS_WIDEN(narrow);
}

// Call group(x, y) for every kLanes of `count` elements, the last filled up with zeros.
template <class Group>
inline void in_lanes(const float* x, const float* y, std::int64_t count, const Group& group) {
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) group(x + i, y + i);
    if (i == count) return;
    float last_x[kLanes] = {}, last_y[kLanes] = {};
    for (std::int64_t j = 0; i + j < count; ++j) {
        last_x[j] = x[i + j];
        last_y[j] = y[i + j];
    }
    group(last_x, last_y);
}

// ErrorSums by lane.
struct ErrorLanes {
    Lanes absolute, square, signal, relative, signed_error, largest;
    LaneCounts nonzero, zeroed;
};

inline void add_errors(const float* x, const float* y, std::int64_t count, ErrorLanes& lanes) {
    ErrorLanes sums = lanes;  // in registers, as far as there are some
    in_lanes(x, y, count, [&](const float* from, const float* to) __attribute__((always_inline)) {
        for (int k = 0; k < kVectors; ++k) {
            Doubles a, b;
            read_doubles(from + k * kWide, &a);
            read_doubles(to + k * kWide, &b);
            const Doubles difference = b - a;
            const Doubles error = QMAPS_ABS(difference);
            const Longs nonzero = a != 0.0;
            sums.absolute.part[k] += error;
            sums.square.part[k] += error * error;
            sums.signal.part[k] += a * a;
            sums.relative.part[k] += QMAPS_WHERE(nonzero, error / QMAPS_ABS(a));
            sums.signed_error.part[k] += difference;
            const Doubles most = sums.largest.part[k];
            sums.largest.part[k] = error > most ? error : most;
            sums.nonzero.part[k] -= nonzero;
            sums.zeroed.part[k] -= nonzero & (Longs)(b == 0.0);
        }
    });
    lanes = sums;
}

inline ErrorSums total_of(const ErrorLanes& lanes) {
    return {sum_of(lanes.absolute),     sum_of(lanes.square),      sum_of(lanes.signal),
            sum_of(lanes.relative),     sum_of(lanes.signed_error), largest_of(lanes.largest),
            sum_of(lanes.nonzero),      sum_of(lanes.zeroed)};
}

inline void count_codes(const std::uint8_t* codes, std::int64_t count, CodeCounts& counts) {
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        std::uint64_t eight;
        __builtin_memcpy(&eight, codes + i, 8);
        for (int j = 0; j < 8; ++j) ++counts.table[j & 3][eight >> (8 * j) & 0xFFu];
    }
    for (; i < count; ++i) ++counts.table[0][codes[i]];
}

// Decode codes that were just made and add up their errors, in tiles.
inline void add_coded(const QuantizeTask& task, const ScaleView& view, const float* x,
                      const std::uint8_t* codes, std::int64_t at, std::int64_t count,
                      ErrorLanes& lanes, CodeCounts& counts, Scratch& scratch) {
    count_codes(codes, count, counts);
    for (std::int64_t i = 0; i < count; i += kTile) {
        const std::int64_t some = count - i < kTile ? count - i : kTile;
        decode_codes(task.codec, view, codes + i, false, at + i, some, scratch.n, scratch);
        add_errors(x + i, scratch.n, some, lanes);
    }
}

static int measure_local(const QuantizeTask& task, std::int64_t begin, std::int64_t end,
                         ErrorSums& sums, CodeCounts& counts, Scratch& scratch) {
    const ScaleView view = stored(task.codec);
    ErrorLanes lanes;
    const int flags = encode_local(task, begin, end, scratch,
                                   [&](const float* x, std::int64_t at, std::int64_t count) {
        add_coded(task, view, x, codes_of(task.codec, at, scratch), at, count, lanes, counts,
                  scratch);
    });
    sums = total_of(lanes);
    return flags;
}

static void measure_fresh(const QuantizeTask& task, std::int64_t begin, std::int64_t end,
                          ErrorSums& sums, CodeCounts& counts, Scratch& scratch) {
    const ScaleView view = fresh(task.codec);
    ErrorLanes lanes;
    encode_under_fresh(task, begin, end, scratch,
                       [&](const float* x, std::int64_t at, std::int64_t count) {
        add_coded(task, view, x, codes_of(task.codec, at, scratch), at, count, lanes, counts,
                  scratch);
    });
    sums = total_of(lanes);
}
