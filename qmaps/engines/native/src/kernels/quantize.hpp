// Whole tensors, a range at a time.

inline int seen_flags(const float* x, std::int64_t count, bool is_signed_book) {
    if (is_signed_book) return largest_bits(x, count) >= kInfinityBits ? kNonFinite : 0;
    if (highest_bits(x, count) < kInfinityBits) return 0;
    std::uint32_t most = 0;
    int negative = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        const std::uint32_t magnitude = bits_of(x[i]) & 0x7FFFFFFFu;
        most = magnitude > most ? magnitude : most;
        negative |= x[i] < 0.0f ? 1 : 0;
    }
    return (most >= kInfinityBits ? kNonFinite : 0) | (negative ? kNegative : 0);
}

// How many elements to take at a time: whole blocks, whole bytes of codes, about a tile.
inline std::int64_t stretch_of(std::int64_t block) {
    std::int64_t least = block;
    while (least % 8) least += block;
    const std::int64_t times = kTile / least;
    return times > 1 ? times * least : least;
}

// Put the stored codes from element `at` on where the task keeps them, and return the lines of those
// that come next. Past the caches where they are many, which saves reading what is overwritten.
inline Lines keep_codes(const QuantizeTask& task, std::int64_t at, std::int64_t count) {
    const int bits = task.codec.codebook->bits;
    const std::int64_t begin = at * bits / 8, bytes = (count * bits + 7) / 8;
    const std::uint8_t* from = task.codec.packed + begin;
    std::uint8_t* to = task.undo + begin;
    if (kStreams && task.numel > kUndone && bytes % 4 == 0) {
        // Read as floats, written as they are: no arithmetic changes their bits.
        stream(reinterpret_cast<const float*>(from), reinterpret_cast<float*>(to), bytes / 4);
    } else {
        __builtin_memcpy(to, from, static_cast<std::size_t>(bytes));
    }
    return {reinterpret_cast<const char*>(from + bytes), bytes / 64};
}

// Encode [begin, end) in blocks that carry their own scales, and call then(x, at, count) after
// each stretch, while its codes are at codes_of().
template <class Then>
inline int encode_local(const QuantizeTask& task, std::int64_t begin, std::int64_t end,
                        Scratch& scratch, const Then& then) {
    const std::int64_t stretch = stretch_of(task.codec.block);
    // What encoding does not tell by itself.
    const bool look = task.check && (task.codec.geometry->log ||
                                     (task.refuse_negative && has_negative(*task.codec.codebook)));
    int flags = 0;
    for (std::int64_t at = begin; at < end; at += stretch) {
        const std::int64_t count = end - at < stretch ? end - at : stretch;
        const float* x = floats(task.x, task.dtype, at, count, scratch.x);
        if (look) flags |= seen_flags(x, count, !task.refuse_negative);
        const bool more = at + stretch < task.numel;
        const Lines codes = task.undo ? keep_codes(task, at, count) : Lines{};
        scratch.ahead = ahead_of(more ? lines_of(task.x, task.dtype, at + stretch, stretch) : Lines{},
                                 more ? codes : Lines{}, stretch, 1);
        const std::uint32_t seen = encode_blocks(task.codec, x, at, count, scratch);
        if ((seen & ~kSignBit) >= kInfinityBits) flags |= kNonFinite;
        if (task.check && task.refuse_negative && seen >= kSignBit)
            flags |= seen_flags(x, count, false);
        then(x, at, count);
    }
    return flags;
}

static int quantize_local(const QuantizeTask& task, std::int64_t begin, std::int64_t end,
                          Scratch& scratch) {
    // Storing past the caches saves reading what will be overwritten, unless it was read to keep it.
    scratch.streams = task.numel > kCached && !task.undo;
    const int flags = encode_local(task, begin, end, scratch,
                                   [](const float*, std::int64_t, std::int64_t) {});
    if (scratch.streams || task.undo) finish_streams();
    scratch.streams = false;
    return flags;
}

static int scan(const QuantizeTask& task, std::int64_t begin, std::int64_t end,
                Scratch& scratch) {
    int flags = 0;
    for (std::int64_t at = begin; at < end; at += kTile) {
        const std::int64_t count = end - at < kTile ? end - at : kTile;
        const float* x = floats(task.x, task.dtype, at, count, scratch.x);
        flags |= seen_flags(x, count, !task.refuse_negative);
    }
    return flags;
}

static int maxima(const QuantizeTask& task, std::int64_t begin, std::int64_t end,
                  float* const* slots, Scratch& scratch) {
    int flags = 0;
    for (std::int64_t at = begin; at < end; at += kTile) {
        const std::int64_t count = end - at < kTile ? end - at : kTile;
        const float* x = floats(task.x, task.dtype, at, count, scratch.x);
        if (task.check) flags |= seen_flags(x, count, !task.refuse_negative);
        fold_parts(*task.codec.geometry, x, at, count, slots);
    }
    return flags;
}

// The same under the codec's fresh scales.
template <class Then>
inline void encode_under_fresh(const QuantizeTask& task, std::int64_t begin, std::int64_t end,
                               Scratch& scratch, const Then& then) {
    const ScaleView view = fresh(task.codec);
    for (std::int64_t at = begin; at < end; at += kTile) {
        const std::int64_t count = end - at < kTile ? end - at : kTile;
        const float* x = floats(task.x, task.dtype, at, count, scratch.x);
        encode_fresh(task.codec, view, x, at, count, scratch);
        then(x, at, count);
    }
}

static void quantize_fresh(const QuantizeTask& task, std::int64_t begin, std::int64_t end,
                           Scratch& scratch) {
    encode_under_fresh(task, begin, end, scratch,
                       [](const float*, std::int64_t, std::int64_t) {});
}

static void dequantize(const DequantizeTask& task, std::int64_t begin, std::int64_t end,
                       Scratch& scratch) {
    const ScaleView view = stored(task.codec);
    const bool streams = kStreams && task.numel > kCached && task.dtype == Dtype::kFloat32;
    for (std::int64_t at = begin; at < end; at += kTile) {
        const std::int64_t count = end - at < kTile ? end - at : kTile;
        float* y = static_cast<float*>(task.y) + at;
        if (task.dtype == Dtype::kFloat32) {
            decode_tile(task.codec, view, at, count, y, scratch, streams);
        } else {
            decode_tile(task.codec, view, at, count, scratch.x, scratch);
            store(scratch.x, task.y, task.dtype, at, count);
        }
    }
    if (streams) finish_streams();
}
