// An optimizer's step over many parameters.
#pragma once

#include "quantize.cuh"

namespace qmaps {

constexpr int larger(int one, int other) { return other > one ? other : one; }

// Parameters of bfloat16 with remainders of type R.
template <class R>
struct Split {};

// How parameters of one kind are stepped.
//   R         the update rule
//   P, G      what parameters and gradients are stored as; P can be a Split
//   kRounds   bfloat16 parameters are rounded stochastically
//   S...      a Format, or Plain, of each of the rule's states
template <class R, class P, class G, bool kRounds_, class S0 = Plain, class S1 = Plain,
          class S2 = Plain, class S3 = Plain>
struct Kind {
    using Rule = R;
    using Parameters = P;
    using Gradients = G;
    using State0 = S0;
    using State1 = S1;
    using State2 = S2;
    using State3 = S3;
    static_assert(Declared<R>::Scalars::kScalars <= kMaxScalars);
    static constexpr bool kRounds = kRounds_;
    static constexpr int kCodebooks = (S0::kInShared ? 1 : 0) + (S1::kInShared ? 1 : 0) +
                                  (S2::kInShared ? 1 : 0) + (S3::kInShared ? 1 : 0);
    static constexpr int kBooks = larger(kCodebooks, 1);
    // Blocks of threads that a multiprocessor is to hold at once. Said two, the compiler takes the
    // registers that it needs, mostly 64 to 80; left alone it takes at most 80, and spills some.
    static constexpr int kBlocks = R::kStates > 2 ? 1 : 2;
};

// The codebook of state k in shared memory, where they lie side by side.
template <class K, int k>
QMAPS_INLINE SharedBook& shared_of(SharedBook* codebooks) {
    constexpr int kBefore = (k > 0 && K::State0::kInShared ? 1 : 0) +
                            (k > 1 && K::State1::kInShared ? 1 : 0) +
                            (k > 2 && K::State2::kInShared ? 1 : 0);
    return codebooks[kBefore];
}

// The codebook that state k, of type S, reads.
template <class K, class S, int k>
QMAPS_INLINE decltype(auto) state_book(const Batch& batch, SharedBook* codebooks) {
    return book_of<S>(batch.codebook[k], shared_of<K, k>(codebooks));
}

template <class S>
QMAPS_INLINE void load_state_book(const Codebook& codebook, SharedBook& to) {
    if constexpr (S::kInShared) load_book<S>(codebook, to);
}

template <class K>
QMAPS_INLINE void load_books(const Batch& batch, SharedBook* codebooks) {
    load_state_book<typename K::State0>(batch.codebook[0], shared_of<K, 0>(codebooks));
    load_state_book<typename K::State1>(batch.codebook[1], shared_of<K, 1>(codebooks));
    load_state_book<typename K::State2>(batch.codebook[2], shared_of<K, 2>(codebooks));
    load_state_book<typename K::State3>(batch.codebook[3], shared_of<K, 3>(codebooks));
    __syncthreads();
}

template <class S, class Book>
QMAPS_INLINE void read_state(const State& state, const Book& codebook, const Place& place,
                             float* x) {
    if constexpr (S::kQuantized) {
        Codes<S::kBits> codes = {};
        if (place.count > 0) codes = load_codes<S::kBits>(state.packed, place.at, place.count);
        decode_unit<S>(codebook, state.scales, codes, place.at, place.count, x);
    } else {
        load_unit(state.data + place.at, place.count, x);
    }
}

template <class S, class Book>
QMAPS_INLINE void write_state(const State& state, const Book& codebook, const Place& place,
                              const float* x, std::uint32_t* shared) {
    if constexpr (!S::kQuantized) {
        store_unit(x, state.data + place.at, place.count);
    } else {
        const Codes<S::kBits> codes = encode_unit<S>(codebook, state.scales, state.noise, place.at,
                                                     place.count, x, shared);
        if (place.count > 0) store_codes<S::kBits>(codes, state.packed, place.at, place.count);
    }
}

// Fold a new state into the maxima of its scales, where they span more than a block.
template <class S>
QMAPS_INLINE void fold_state(const State& state, const Place& place, const float* x) {
    if constexpr (S::kBlock == 0) fold_unit(state.scales, place.at, place.count, x);
}

// What factored statistics come to for each element.
template <class R>
QMAPS_INLINE void factored_values(const FactoredStates& factored, const Place& place, float* x) {
    for (int j = 0; j < kUnit; ++j) x[j] = 0.0f;
    if (place.count == 0) return;
    if constexpr (factoring_of<R> == kSmallest) {
        unit_scales<false>(factored.slices, place.at, place.count, x);
    } else {
        const Division at = divide(place.at, factored.columns);
        std::int64_t row = at.quotient, column = at.rest;
        for (int j = 0; j < kUnit; ++j) {
            if (j >= place.count) continue;
            x[j] = factored.row_factor[row] *
                   factored.column_factor[divide(row, factored.rows).quotient * factored.columns + column];
            if (++column < factored.columns) continue;
            column = 0;
            ++row;
        }
    }
}

// A tile of a parameter before and after its rule.
struct Unit {
    float p[kUnit], g[kUnit], state[kMaxStates][kUnit];
};

template <class P>
QMAPS_INLINE void load_parameter(const P*, const Parameter&, const Address& address,
                                 const Place& place, float* to) {
    load_unit(static_cast<const P*>(address.p) + place.at, place.count, to);
}

template <class P>
QMAPS_INLINE void save_parameter(P*, const Parameter&, const Address& address, const Place& place,
                                 const float* from) {
    store_unit(from, static_cast<P*>(address.p) + place.at, place.count);
}

template <class R>
QMAPS_INLINE void load_parameter(const Split<R>*, const Parameter& parameter,
                                 const Address& address, const Place& place, float* to) {
    load_unit(static_cast<const Bf16*>(address.p) + place.at, place.count, to);
    R remainder[kUnit];
    load_remainders(static_cast<const R*>(parameter.remainder) + place.at, place.count, remainder);
    for (int j = 0; j < kUnit; ++j)
        to[j] = joined(static_cast<std::uint16_t>(bits_of(to[j]) >> 16), remainder[j]);
}

template <class R>
QMAPS_INLINE void save_parameter(Split<R>*, const Parameter& parameter, const Address& address,
                                 const Place& place, const float* from) {
    float rounded[kUnit];
    R remainder[kUnit];
    for (int j = 0; j < kUnit; ++j) rounded[j] = from_bf16(split(from[j], remainder[j]));
    store_unit(rounded, static_cast<Bf16*>(address.p) + place.at, place.count);
    store_remainders(remainder, static_cast<R*>(parameter.remainder) + place.at, place.count);
}

template <class K>
QMAPS_INLINE void read_unit(const Batch& batch, const Parameter& parameter, const Address& address,
                            const Place& place, SharedBook* codebooks, Unit& unit) {
    using R = typename K::Rule;
    load_unit(static_cast<const typename K::Gradients*>(address.g) + place.at, place.count,
              unit.g);
    load_parameter(static_cast<const typename K::Parameters*>(nullptr), parameter, address, place,
                   unit.p);
    if constexpr (R::kStates > 0)
        read_state<typename K::State0>(parameter.state[0],
            state_book<K, typename K::State0, 0>(batch, codebooks), place,
            unit.state[0]);
    if constexpr (R::kStates > 1)
        read_state<typename K::State1>(parameter.state[1],
            state_book<K, typename K::State1, 1>(batch, codebooks), place,
            unit.state[1]);
    if constexpr (R::kStates > 2)
        read_state<typename K::State2>(parameter.state[2],
            state_book<K, typename K::State2, 2>(batch, codebooks), place,
            unit.state[2]);
    if constexpr (R::kStates > 3)
        read_state<typename K::State3>(parameter.state[3],
            state_book<K, typename K::State3, 3>(batch, codebooks), place,
            unit.state[3]);
    if constexpr (factoring_of<R> != kNotFactored)
        factored_values<R>(parameter.factored, place, unit.state[R::kStates]);
    if (batch.grad_scale) {
        const float scale = *batch.grad_scale;
        for (int j = 0; j < kUnit; ++j) unit.g[j] = unit.g[j] / scale;
    }
}

// `finish` of Adam for elements whose v is from 2^-100 to 2^20 and m from 2^-100 to 2^60, or 0.
template <class R>
QMAPS_INLINE void finish_quickly(const R& rule, Unit& unit) {
    const QuickDivisor correction(rule.root.d);
    for (int j = 0; j < kUnit; ++j) {
        const float denominator = correction.under(quick_root(unit.state[1][j])) + rule.eps;
        unit.p[j] = unit.p[j] - QuickDivisor(denominator).under(unit.state[0][j]) * rule.size;
    }
}

template <class R>
QMAPS_INLINE void advance_in_parts(const float* scalars, Unit& unit) {
    const R rule(scalars);
    for (int j = 0; j < kUnit; ++j) {
        float states[] = {unit.state[0][j], unit.state[1][j]};
        unit.p[j] = rule.begin(unit.p[j], unit.g[j], states);
        for (int k = 0; k < 2; ++k) unit.state[k][j] = states[k];
    }
    std::uint32_t least = kAll, most = 0;  // of v; what is negative or NaN comes last
    for (int j = 0; j < kUnit; ++j) {
        const std::uint32_t bits = bits_of(unit.state[1][j]);
        least = bits < least ? bits : least;
        most = bits > most ? bits : most;
    }
    const Magnitudes m(unit.state[0]);
    const bool plain = least >= bits_of(kSmall) && most <= bits_of(0x1p20f) &&
                       m.least >= bits_of(kSmall) && m.most <= bits_of(0x1p60f);
    // Denominators stay from 2^-50 to 2^33.
    if (plain && rule.root.d >= 0x1p-12f && rule.root.d <= 1.0f && rule.eps >= 0.0f && rule.eps <= 1.0f) {
        finish_quickly(rule, unit);
        return;
    }
    float p[kUnit], states[kUnit][2];
    for (int j = 0; j < kUnit; ++j) {
        p[j] = unit.p[j];
        for (int k = 0; k < 2; ++k) states[j][k] = unit.state[k][j];
    }
    const R again(scalars);  // so that nothing is prepared for this path before it is taken
#pragma unroll 1
    for (int j = 0; j < kUnit; ++j) p[j] = again.finish(p[j], states[j]);
    for (int j = 0; j < kUnit; ++j) unit.p[j] = p[j];
}

template <class K>
QMAPS_INLINE void read_and_advance(const Batch& batch, const Parameter& parameter,
                                   const Address& address, const Place& place, SharedBook* codebooks,
                                   Unit& unit) {
    using R = typename K::Rule;
    constexpr int kNumbers = R::kStates + (factoring_of<R> != kNotFactored ? 1 : 0);
    read_unit<K>(batch, parameter, address, place, codebooks, unit);
    if constexpr (kInParts<R>) {
        advance_in_parts<R>(parameter.scalars, unit);
    } else {
        const R rule(parameter.scalars);
        for (int j = 0; j < kUnit; ++j) {
            float states[kMaxStates] = {};
            for (int k = 0; k < kNumbers; ++k) states[k] = unit.state[k][j];
            unit.p[j] = rule(unit.p[j], unit.g[j], states);
            for (int k = 0; k < kNumbers; ++k) unit.state[k][j] = states[k];
        }
    }
    // What stands for elements that are not there must not count as the maximum of a block.
    if (place.count < kUnit)
        for (int j = 0; j < kUnit; ++j)
            for (int k = 0; k < R::kStates; ++k)
                unit.state[k][j] = j < place.count ? unit.state[k][j] : 0.0f;
}

template <class K>
QMAPS_INLINE void store_parameter(const Parameter& parameter, const Address& address,
                                  const Place& place, const float* p) {
    typename K::Parameters* to = nullptr;
    if constexpr (K::kRounds) {
        if (place.count == 0) return;
        const Noise& noise = parameter.noise;
        const Words<4> draws = unit_draws(noise, static_cast<std::uint64_t>(noise.offset + place.at));
        float rounded[kUnit];
        for (int j = 0; j < kUnit; ++j)
            rounded[j] = from_bf16(to_bf16_stochastic(p[j], draw_of(draws, j)));
        save_parameter(to, parameter, address, place, rounded);
    } else {
        save_parameter(to, parameter, address, place, p);
    }
}

// Decode, update, store the parameter, encode. Scales that span more than a block are there.
template <class K>
QMAPS_INLINE void step_unit(const Batch& batch, const Parameter& parameter, const Address& address,
                            const Place& place, SharedBook* codebooks, std::uint32_t* largest) {
    using R = typename K::Rule;
    Unit unit;
    read_and_advance<K>(batch, parameter, address, place, codebooks, unit);
    store_parameter<K>(parameter, address, place, unit.p);
    if constexpr (R::kStates > 0)
        write_state<typename K::State0>(parameter.state[0],
            state_book<K, typename K::State0, 0>(batch, codebooks), place,
            unit.state[0], largest);
    if constexpr (R::kStates > 1)
        write_state<typename K::State1>(parameter.state[1],
            state_book<K, typename K::State1, 1>(batch, codebooks), place,
            unit.state[1], largest);
    if constexpr (R::kStates > 2)
        write_state<typename K::State2>(parameter.state[2],
            state_book<K, typename K::State2, 2>(batch, codebooks), place,
            unit.state[2], largest);
    if constexpr (R::kStates > 3)
        write_state<typename K::State3>(parameter.state[3],
            state_book<K, typename K::State3, 3>(batch, codebooks), place,
            unit.state[3], largest);
    if constexpr (factoring_of<R> == kSmallest)
        fold_unit(parameter.factored.slices, place.at, place.count, unit.state[R::kStates]);
}

// The last tile of a parameter, or one that wide accesses do not reach.
template <class K>
QMAPS_RARE void step_tail(const Batch& batch, const Parameter& parameter, const Address address,
                          const Place place, SharedBook* codebooks, std::uint32_t* largest) {
    step_unit<K>(batch, parameter, address, place, codebooks, largest);
}

// Has one of the lower 4 bits where an address is not a multiple of this many bytes, up to 16.
template <int kBytes>
QMAPS_INLINE unsigned misaligned(const void* address) {
    return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(address)) * (16 / kBytes);
}

template <class S>
QMAPS_INLINE unsigned misaligned_state(const State& state) {
    if constexpr (!S::kQuantized)
        return misaligned<16>(state.data);
    else if constexpr (S::kBits == 4 || S::kBits == 8 || S::kBits == 16)
        return misaligned<S::kBits>(state.packed);
    else
        return 0;
}

template <class P>
constexpr int kRemainderBytes = 1;
template <class T>
constexpr int kRemainderBytes<Split<T>> = kUnit * sizeof(T);

// Whether a tile is whole, and wide accesses reach all of it; the same for all threads of a block.
template <class K>
QMAPS_INLINE bool is_whole(const Parameter& parameter, const Address& address, std::int64_t tile) {
    using R = typename K::Rule;
    constexpr int kBytes = kRemainderBytes<typename K::Parameters>;
    unsigned odd = misaligned<16>(address.p) | misaligned<16>(address.g);
    if constexpr (kBytes > 1) odd |= misaligned<kBytes>(parameter.remainder);
    if constexpr (R::kStates > 0) odd |= misaligned_state<typename K::State0>(parameter.state[0]);
    if constexpr (R::kStates > 1) odd |= misaligned_state<typename K::State1>(parameter.state[1]);
    if constexpr (R::kStates > 2) odd |= misaligned_state<typename K::State2>(parameter.state[2]);
    if constexpr (R::kStates > 3) odd |= misaligned_state<typename K::State3>(parameter.state[3]);
    return odd % 16 == 0 && (tile + 1) * kTile <= parameter.numel;
}

template <class K>
__global__ void __launch_bounds__(kThreads, K::kBlocks) step(const __grid_constant__ Batch batch) {
    __shared__ SharedBook codebooks[K::kBooks];
    __shared__ std::uint32_t largest[kWarps];
    if (*batch.skip) return;
    load_books<K>(batch, codebooks);
    for (std::int64_t i = blockIdx.x; i < batch.count; i += gridDim.x) {
        const Item item = batch.items[i];
        const Parameter& parameter = batch.parameters[item.parameter];
        const Address address = batch.addresses[item.parameter];
        const Place place = place_of(item.tile, parameter.numel);
        if (is_whole<K>(parameter, address, item.tile))
            step_unit<K>(batch, parameter, address, {place.at, kWhole}, codebooks, largest);
        else
            step_tail<K>(batch, parameter, address, place, codebooks, largest);
    }
}

// The maxima of new states whose scales span more than a block, so that they are known before.
template <class K>
__global__ void __launch_bounds__(kThreads, K::kBlocks) step_maxima(const Batch batch) {
    using R = typename K::Rule;
    __shared__ SharedBook codebooks[K::kBooks];
    if (*batch.skip) return;
    load_books<K>(batch, codebooks);
    for (std::int64_t i = blockIdx.x; i < batch.count; i += gridDim.x) {
        const Item item = batch.items[i];
        const Parameter& parameter = batch.parameters[item.parameter];
        const Place place = place_of(item.tile, parameter.numel);
        Unit unit;
        read_and_advance<K>(batch, parameter, batch.addresses[item.parameter], place, codebooks, unit);
        if constexpr (R::kStates > 0)
            fold_state<typename K::State0>(parameter.state[0], place, unit.state[0]);
        if constexpr (R::kStates > 1)
            fold_state<typename K::State1>(parameter.state[1], place, unit.state[1]);
        if constexpr (R::kStates > 2)
            fold_state<typename K::State2>(parameter.state[2], place, unit.state[2]);
        if constexpr (R::kStates > 3)
            fold_state<typename K::State3>(parameter.state[3], place, unit.state[3]);
    }
}

// Squares of the elements that a rule takes norms of, added to those of the tile before.
struct Squares {
    double p[kUnit], measured[kUnit];
};

template <class K>
QMAPS_INLINE void add_squares(const Batch& batch, const Parameter& parameter,
                              const Address& address, std::int64_t tile, SharedBook* codebooks,
                              Squares& squares) {
    using R = typename K::Rule;
    constexpr int kNumbers = R::kStates + (factoring_of<R> != kNotFactored ? 1 : 0);
    const Place place = place_of(tile, parameter.numel);
    Unit unit;
    read_unit<K>(batch, parameter, address, place, codebooks, unit);
    const R rule(parameter.scalars);
    for (int j = 0; j < kUnit; ++j) {
        float states[kMaxStates] = {};
        for (int k = 0; k < kNumbers; ++k) states[k] = unit.state[k][j];
        const bool there = j < place.count;
        const double p = there ? unit.p[j] : 0.0f;
        const double measured = there ? rule.measured(unit.p[j], unit.g[j], states) : 0.0f;
        squares.p[j] += p * p;
        squares.measured[j] += measured * measured;
    }
}

// The sum over a block, for its first thread: the first half of all to the second, until one is
// left; a thread has kUnit neighbours.
QMAPS_INLINE double added(double* x, double (*shared)[kUnit]) {
    const int thread = static_cast<int>(threadIdx.x);
    for (int half = kThreads / 2; half > 0; half /= 2) {
        if (thread >= half && thread < 2 * half)
            for (int j = 0; j < kUnit; ++j) shared[thread - half][j] = x[j];
        __syncthreads();
        if (thread < half)
            for (int j = 0; j < kUnit; ++j) x[j] += shared[thread][j];
        __syncthreads();
    }
    for (int half = kUnit / 2; half > 0; half /= 2)
        for (int j = 0; j < half; ++j) x[j] += x[j + half];
    return x[0];
}

constexpr std::int64_t kNormChunk = 2 * kTile;

// The sums of squares of chunks of two tiles, of the parameter and of what its rule measures. The
// order of sums is that of qmaps.optim.norms.
template <class K>
__global__ void __launch_bounds__(kThreads, K::kBlocks) step_norms(const Batch batch) {
    __shared__ SharedBook codebooks[K::kBooks];
    __shared__ double shared[kThreads / 2][kUnit];
    if (*batch.skip) return;
    load_books<K>(batch, codebooks);
    for (std::int64_t i = blockIdx.x; i < batch.count; i += gridDim.x) {
        const Item item = batch.items[i];
        if (item.tile % 2 != 0) continue;
        const Parameter& parameter = batch.parameters[item.parameter];
        const Address address = batch.addresses[item.parameter];
        Squares squares = {};
        add_squares<K>(batch, parameter, address, item.tile, codebooks, squares);
        add_squares<K>(batch, parameter, address, item.tile + 1, codebooks, squares);
        const double p = added(squares.p, shared);
        const double measured = added(squares.measured, shared);
        if (threadIdx.x != 0) continue;
        parameter.sums[item.tile] = p;
        parameter.sums[item.tile + 1] = measured;
    }
}

// What a parameter's norms come to, once for each: a block adds the chunks' sums, filled up with
// zeros to a power of two, as the elements of a chunk are added.
template <class K>
__global__ void __launch_bounds__(kThreads, K::kBlocks) finish_norms(const Batch batch) {
    using R = typename K::Rule;
    static_assert(R::kSettled <= kMaxScalars);
    if (*batch.skip) return;
    for (std::int64_t i = blockIdx.x; i < batch.count; i += gridDim.x) {
        const Item item = batch.items[i];
        if (item.tile != 0) continue;
        Parameter& parameter = batch.parameters[item.parameter];
        std::int64_t size = 1;
        while (size * kNormChunk < parameter.numel) size *= 2;
        for (std::int64_t half = size; half > 1; half /= 2) {
            // Sums lie in pairs, so that half as many pairs are as many numbers.
            for (std::int64_t at = threadIdx.x; at < half; at += kThreads)
                parameter.sums[at] += parameter.sums[at + half];
            __syncthreads();
        }
        if (threadIdx.x == 0)
            R::settle(parameter.sums[0], parameter.sums[1],
                      static_cast<double>(parameter.numel), parameter.scalars);
        __syncthreads();
    }
}

// Whether gradients are finite where that stops the step; `bad` becomes 1 where not.
struct GradientCheck {
    const Parameter* parameters;
    const Address* addresses;
    const Item* items;
    std::int64_t count;
    int* bad;
};

template <class G>
__global__ void check_gradients(const GradientCheck task) {
    int found = 0;
    for (std::int64_t i = blockIdx.x; i < task.count; i += gridDim.x) {
        const Item item = task.items[i];
        const Parameter& parameter = task.parameters[item.parameter];
        if (!parameter.skips) continue;
        const Place place = place_of(item.tile, parameter.numel);
        float g[kUnit];
        load_unit(static_cast<const G*>(task.addresses[item.parameter].g) + place.at, place.count,
                  g);
        found |= flags_of(g, place.count, false);
    }
    raise_flags(task.bad, found);
}

}  // namespace qmaps
