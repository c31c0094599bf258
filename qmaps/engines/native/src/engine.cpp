#include "engine.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "parallel.hpp"
#include "undo.hpp"

namespace qmaps {
namespace {

// Elements that one item of work covers: whole blocks and whole bytes of codes.
std::int64_t chunk_of(std::int64_t block) {
    std::int64_t least = std::max<std::int64_t>(block, 1);
    while (least % 8) least += std::max<std::int64_t>(block, 1);
    return std::max<std::int64_t>(1, kChunk / least) * least;
}

// A part whose scales every chunk visits, so that threads need maxima of their own.
bool shared_by_all(const Part& part, std::int64_t numel) {
    return part.divisor == 1 && part.count < numel;
}

// What scales in e4m3 are multiples of; see qmaps.normalize.e4m3.
float level_of(float largest) {
    const float level = largest / 448.0f;
    const float normal = std::numeric_limits<float>::min();
    return largest != 0.0f && level < normal ? normal : level;
}

// Codes of the fresh scales of part `p`.
template <class C>
auto* codes_of(C& codec, std::size_t p) {
    return codec.fresh_codes.data() + (codec.fresh[p] - codec.fresh[0]);
}

// Call work(begin, count) for chunks of `count` scales.
template <class Work>
void in_chunks(std::int64_t count, int threads, const Work& work) {
    parallel(chunks(count, kChunk), threads, [&](std::int64_t item, int) {
        work(item * kChunk, std::min(kChunk, count - item * kChunk));
    });
}

// Take in another scale; 0 is none, and NaN stays.
void widen(Ends& ends, float scale) {
    if (scale == 0.0f) return;
    if (ends.high == 0.0f || std::isnan(scale)) ends = {scale, scale};
    if (scale < ends.low) ends.low = scale;
    if (scale > ends.high) ends.high = scale;
}

void widen(Ends& ends, const Ends& others) {
    widen(ends, others.low);
    widen(ends, others.high);
}

Ends ends_of(const float* scales, std::int64_t count, int threads) {
    std::vector<Ends> some(static_cast<std::size_t>(chunks(count, kChunk)));
    in_chunks(count, threads, [&](std::int64_t begin, std::int64_t size) {
        Ends mine;
        for (std::int64_t i = begin; i < begin + size; ++i) widen(mine, scales[i]);
        some[static_cast<std::size_t>(begin / kChunk)] = mine;
    });
    Ends all;
    for (const Ends& ends_of_chunk : some) widen(all, ends_of_chunk);
    return all;
}

}  // namespace

Scratch& scratch() {
    thread_local const std::unique_ptr<Scratch> memory = std::make_unique<Scratch>();
    return *memory;
}

StepScratch& step_scratch() {
    thread_local const std::unique_ptr<StepScratch> memory = std::make_unique<StepScratch>();
    return *memory;
}

void prepare(Codec& codec, const Kernels& set, std::int64_t numel, bool stored_scales) {
    const Geometry& geometry = *codec.geometry;
    codec.block = geometry.local_block(numel);
    codec.grids.clear();
    codec.decoded.clear();
    for (const Part& part : geometry.parts) {
        const bool widened = part.kind != kScaleFloat32 && part.kind != kScaleSixteenths;
        if (widened && part.ends < 0 && stored_scales) {
            const std::size_t before = codec.decoded.size();
            codec.decoded.resize(before + static_cast<std::size_t>(part.count));
            set.widen_scales(part.kind, codec.arrays[part.array], part.count,
                             codec.decoded.data() + before);
        }
        if (part.ends < 0) continue;
        float grid[256] = {};
        if (stored_scales) {
            const auto* ends = static_cast<const float*>(codec.arrays[part.ends]);
            set.scale_grid(part.kind, ends, grid);
        }
        codec.grids.insert(codec.grids.end(), grid, grid + 256);
        if (!stored_scales || part.divisor > 1) continue;
        const auto* codes = static_cast<const std::uint8_t*>(codec.arrays[part.array]);
        for (std::int64_t i = 0; i < part.count; ++i) codec.decoded.push_back(grid[codes[i]]);
    }
}

void reserve_fresh(Codec& codec) {
    std::int64_t total = 0;
    for (const Part& part : codec.geometry->parts) total += part.count;
    codec.fresh_memory.assign(static_cast<std::size_t>(total), 0.0f);
    codec.fresh_codes.resize(codec.grids.empty() ? 0 : static_cast<std::size_t>(total));
    float* next = codec.fresh_memory.data();
    int p = 0;
    for (const Part& part : codec.geometry->parts) {
        codec.fresh[p++] = next;
        next += part.count;
    }
}

void take_fresh(Codec& codec, const std::vector<float*>& memory) {
    for (std::size_t p = 0; p < memory.size(); ++p) {
        codec.fresh[p] = memory[p];
        std::fill_n(memory[p], codec.geometry->parts[p].count, 0.0f);
    }
}

PrivateMaxima::PrivateMaxima(const Codec& codec, std::int64_t numel, int threads)
    : codec_(codec), threads_(threads) {
    std::int64_t total = 0;
    for (const Part& part : codec.geometry->parts)
        total += shared_by_all(part, numel) ? part.count : 0;
    memory_.assign(static_cast<std::size_t>(total) * threads, 0.0f);
    float* next = memory_.data();
    for (int t = 0; t < threads; ++t) {
        int p = 0;
        for (const Part& part : codec.geometry->parts) {
            const bool is_private = shared_by_all(part, numel);
            slots_.push_back(is_private ? next : codec.fresh[p]);
            if (is_private) next += part.count;
            ++p;
        }
    }
}

void PrivateMaxima::merge() {
    const int parts = static_cast<int>(codec_.geometry->parts.size());
    for (int t = 0; t < threads_; ++t)
        for (int p = 0; p < parts; ++p) {
            const float* maxima = of(t)[p];
            float* all = codec_.fresh[p];
            if (maxima == all) continue;
            for (std::int64_t i = 0; i < codec_.geometry->parts[p].count; ++i) {
                std::uint32_t candidate, largest;
                std::memcpy(&candidate, maxima + i, 4);
                std::memcpy(&largest, all + i, 4);
                if (candidate > largest) all[i] = maxima[i];
            }
        }
}

void round_up_scales(Codec& codec, const Kernels& set, std::vector<Ends>& ends, int threads) {
    const auto& parts = codec.geometry->parts;
    ends.clear();
    // Parts that share their ends lie side by side.
    for (std::size_t first = 0; first < parts.size();) {
        if (parts[first].ends < 0) {
            if (parts[first].kind != kScaleFloat32)
                set.round_scales(parts[first].kind, codec.fresh[first], parts[first].count);
            ++first;
            continue;
        }
        std::size_t last = first;
        Ends shared_ends;
        for (; last < parts.size() && parts[last].ends == parts[first].ends; ++last)
            widen(shared_ends, ends_of(codec.fresh[last], parts[last].count, threads));
        if (parts[first].kind == kScaleE4m3) shared_ends.low = level_of(shared_ends.high);
        ends.push_back(shared_ends);
        const float shared[2] = {shared_ends.low, shared_ends.high};
        float grid[256];
        set.scale_grid(parts[first].kind, shared, grid);
        for (std::size_t p = first; p < last; ++p)
            in_chunks(parts[p].count, threads, [&](std::int64_t begin, std::int64_t count) {
                set.onto_grid(parts[p].kind, shared, grid, codec.fresh[p] + begin, count,
                              codes_of(codec, p) + begin);
            });
        first = last;
    }
}

void commit_scales(const Codec& codec, const std::vector<Ends>& ends) {
    const auto& parts = codec.geometry->parts;
    int previous = -1, group = -1;
    for (std::size_t p = 0; p < parts.size(); ++p) {
        const Part& part = parts[p];
        if (part.ends < 0 && part.count == 0) continue;
        if (part.kind != kScaleFloat32 && part.ends < 0) {
            kernels().store_scales(part.kind, codec.fresh[p], part.count, codec.arrays[part.array]);
            continue;
        }
        if (part.ends < 0) {
            std::memcpy(codec.arrays[part.array], codec.fresh[p], part.count * sizeof(float));
            continue;
        }
        if (part.ends != previous) {
            previous = part.ends;
            const Ends& group_ends = ends[++group];
            auto* stored = static_cast<float*>(codec.arrays[part.ends]);
            stored[0] = group_ends.low;
            if (part.kind != kScaleE4m3) stored[1] = group_ends.high;
        }
        // There may be no codes, and no memory for them.
        std::copy_n(codes_of(codec, p), part.count,
                    static_cast<std::uint8_t*>(codec.arrays[part.array]));
    }
}

std::int64_t items_of(const QuantizeTask& task) {
    return chunks(task.numel, chunk_of(task.codec.geometry->local_block(task.numel)));
}

int encode(QuantizeTask& task, int threads, const EncodeRange& local, const EncodeRange& fresh) {
    const Kernels& set = kernels();
    prepare(task.codec, set, task.numel, false);
    std::atomic<int> flags{0};
    const std::int64_t chunk = chunk_of(task.codec.block);
    const auto in_ranges = [&](const EncodeRange& work) {
        parallel(chunks(task.numel, chunk), threads, [&](std::int64_t item, int thread) {
            flags |= work(item * chunk, std::min(task.numel, (item + 1) * chunk), item, thread);
        });
    };
    if (task.codec.block > 0 && task.check && task.keep) {
        if (Undo undo(task); undo) {
            task.undo = undo.memory();
            in_ranges(local);
            if (flags) undo.restore(task.numel);
            return flags;
        }
        in_ranges([&](std::int64_t begin, std::int64_t end, std::int64_t, int) {
            return set.scan(task, begin, end, scratch());
        });
        if (flags) return flags;
        task.check = false;
    }
    if (task.codec.block > 0) {
        in_ranges(local);
        return flags;
    }
    reserve_fresh(task.codec);
    PrivateMaxima private_maxima(task.codec, task.numel, threads);
    in_ranges([&](std::int64_t begin, std::int64_t end, std::int64_t, int thread) {
        return set.maxima(task, begin, end, private_maxima.of(thread), scratch());
    });
    private_maxima.merge();
    if (flags && task.keep) return flags;
    std::vector<Ends> ends;
    round_up_scales(task.codec, set, ends, threads);
    in_ranges(fresh);
    commit_scales(task.codec, ends);
    return flags;
}

int quantize(QuantizeTask& task, int threads) {
    const Kernels& set = kernels();
    return encode(
        task, threads,
        [&](std::int64_t begin, std::int64_t end, std::int64_t, int) {
            return set.quantize_local(task, begin, end, scratch());
        },
        [&](std::int64_t begin, std::int64_t end, std::int64_t, int) {
            set.quantize_fresh(task, begin, end, scratch());
            return 0;
        });
}

void dequantize(DequantizeTask& task, int threads) {
    const Kernels& set = kernels();
    prepare(task.codec, set, task.numel, true);
    parallel(chunks(task.numel, kChunk), threads, [&](std::int64_t item, int) {
        set.dequantize(task, item * kChunk, std::min(task.numel, (item + 1) * kChunk), scratch());
    });
}

}  // namespace qmaps
