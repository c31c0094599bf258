// Tiles of one quantized tensor: decoding, normalizing, rounding. A tile lies anywhere in the
// tensor but begins at a multiple of 8 elements, and holds at most kTile of them unless its
// scales are constant stretches.

inline void make_searchable(float* n, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) n[i] = searchable(n[i]);
}

// Values at the codes' positions in each block's log2 range.
inline void log_values(const ScaleView& view, std::int64_t at, std::int64_t count, float* values,
                       float* low, float* high) {
    part_scales(view.part[0], at, count, low);
    part_scales(view.part[1], at, count, high);
    if (view.power) {
        take_powers(low, high, count, values);
        return;
    }
    for (std::int64_t i = 0; i < count; ++i) values[i] = log_value(values[i], low[i], high[i]);
}

// Call make(to), which writes as many floats: to `out`, or, with `streams`, to the scratch, from
// where they go to `out` past the caches.
template <class Make>
inline void made(float* out, std::int64_t count, bool streams, Scratch& scratch,
                 const Make& make) {
    if (!streams) return make(out);
    make(scratch.x);
    stream(scratch.x, out, count);
}

// Decode codes of a byte each, or, with `halves`, of half a byte. `streams`: past the caches.
inline void decode_codes(const Codec& codec, const ScaleView& view, const std::uint8_t* codes,
                         bool halves, std::int64_t at, std::int64_t count, float* out,
                         Scratch& scratch, bool streams = false) {
    const Lookup& lookup = codec.codebook->values;
    if (view.log) {
        made(out, count, streams, scratch, [&](float* to) ALWAYS_INLINE {
            look_up(lookup, codes, halves, to, count);
            log_values(view, at, count, to, scratch.low, scratch.high);
        });
        return;
    }
    const PartView& part = view.part[0];
    const bool blocks = view.parts == 1 && part.count * part.divisor >= at + count;
    if (blocks && look_up_blocks(lookup, codes, halves, part, at, out, count, streams)) return;
    if (look_up_least(lookup, codes, halves, view, at, out, count, streams)) return;
    made(out, count, streams, scratch, [&](float* to) ALWAYS_INLINE {
        look_up(lookup, codes, halves, to, count);
        multiply(view, at, count, to);
    });
}

inline void decode_tile(const Codec& codec, const ScaleView& view, std::int64_t at,
                        std::int64_t count, float* out, Scratch& scratch, bool streams = false) {
    if (codec.codebook->wide) {
        made(out, count, streams, scratch, [&](float* to) ALWAYS_INLINE {
            decode_wide(codec, view, at, count, to, scratch);
        });
        return;
    }
    const int bits = codec.codebook->bits;
    const bool halves = kReadsHalves && bits == 4;
    const std::uint8_t* codes = codec.packed + at * bits / 8;
    if (bits != 8 && !halves) {
        unpack(codec.packed, bits, at, count, scratch.codes);
        codes = scratch.codes;
    }
    decode_codes(codec, view, codes, halves, at, count, out, scratch, streams);
}

inline void divide(const float* x, float scale, std::int64_t count, float* n) {
    if (scale == 0.0f) {
        for (std::int64_t i = 0; i < count; ++i) n[i] = 0.0f;
        return;
    }
    for (std::int64_t i = 0; i < count; ++i) n[i] = x[i] / scale;
    if (bits_of(scale) >= kInfinityBits) make_searchable(n, count);
}

// Positions in each block's log2 range; -1 for zero.
inline void log_positions(const float* x, const float* low, const float* high, std::int64_t count,
                          float* n) {
    for (std::int64_t i = 0; i < count; ++i) n[i] = log_position(x[i], low[i], high[i]);
}

// Normalized values of a tile under scales that differ by element.
inline void normalize_tile(const ScaleView& view, const float* x, std::int64_t at,
                           std::int64_t count, float* n, Scratch& scratch) {
    if (view.log) {
        part_scales(view.part[0], at, count, scratch.low);
        part_scales(view.part[1], at, count, scratch.high);
        if (view.power) {
            put_powers(x, scratch.low, scratch.high, count, n);
            return;
        }
        log_positions(x, scratch.low, scratch.high, count, n);
        return;
    }
    in_scales(view, at, count,
              [&](std::int64_t i, std::int64_t some, float all, const float* scales) ALWAYS_INLINE {
        const float* from = x + i;
        float* __restrict to = n + i;
        if (scales) {
            for (std::int64_t j = 0; j < some; ++j)
                to[j] = normalized(from[j], smaller_of(all, scales[j]));
        } else {
            divide(from, all, some, to);
        }
    });
}

// Codes of positions n in log2 ranges, rounded stochastically between neighbours of the elements x.
inline void round_log_codes(const Codec& codec, const ScaleView& view, const float* x,
                            const float* n, std::int64_t at, std::int64_t count,
                            std::uint8_t* codes, Scratch& scratch) {
    const Codebook& codebook = *codec.codebook;
    search_codes(codebook.stochastic, n, codes, count, scratch);
    for (std::int64_t i = 0; i < count; i += kTile) {
        const std::int64_t some = count - i < kTile ? count - i : kTile;
        look_up(codebook.values, codes + i, false, scratch.low, some);
        for (std::int64_t j = 0; j < some; ++j)
            scratch.high[j] = codebook.values.value[codes[i + j] + 1];
        float low_ends[kTile], high_ends[kTile];
        log_values(view, at + i, some, scratch.low, low_ends, high_ends);
        log_values(view, at + i, some, scratch.high, low_ends, high_ends);
        const std::uint16_t* draws = draws_of(codec.noise, at + i, some, scratch);
        raise(codes + i, codebook.size - 1, x + i, scratch.low, scratch.high, draws,
              mirror_of(codec.noise.key1), some, codebook.bend);
    }
}

inline void take_lowest(const Codebook& codebook, std::uint8_t* codes, std::int64_t count) {
    if (!codebook.lowest) return;
    for (std::int64_t i = 0; i < count; ++i) codes[i] = codebook.lowest[codes[i]];
}

// Where the codes of a tile are made: in place if they are stored as bytes.
inline std::uint8_t* codes_of(const Codec& codec, std::int64_t at, Scratch& scratch) {
    return codec.packed && codec.codebook->bits == 8 ? codec.packed + at : scratch.codes;
}

// Store codes that were made there. Without storage they stay there.
inline void store_codes_of(const Codec& codec, std::int64_t at, std::uint8_t* codes,
                           std::int64_t count, Scratch& scratch) {
    if (codec.stochastic) take_lowest(*codec.codebook, codes, count);
    if (codec.packed && codec.codebook->bits != 8)
        pack(scratch.codes, codec.codebook->bits, at, count, codec.packed);
}

// Codes of normalized values; x and view are needed by log2 maps alone.
inline void encode_normalized(const Codec& codec, const ScaleView& view, const float* x,
                              const float* n, std::int64_t at, std::int64_t count,
                              Scratch& scratch) {
    const Codebook& codebook = *codec.codebook;
    if (codebook.wide) {
        encode_wide(codec, n, at, count, scratch);
        return;
    }
    std::uint8_t* codes = codes_of(codec, at, scratch);
    if (!codec.stochastic) {
        search_codes(codebook.nearest, n, codes, count, scratch);
    } else if (view.log && !codebook.in_log) {
        round_log_codes(codec, view, x, n, at, count, codes, scratch);
    } else {
        round_codes(codec, n, at, codes, count, scratch);
    }
    store_codes_of(codec, at, codes, count, scratch);
}

// The stored scales.
inline ScaleView stored(const Codec& codec) {
    ScaleView view;
    view.log = codec.geometry->log;
    view.power = codec.geometry->ratio != 0.0f;
    int grids = 0;
    const float* decoded = codec.decoded.empty() ? nullptr : codec.decoded.data();
    for (const Part& part : codec.geometry->parts) {
        PartView& seen = view.part[view.parts++];
        seen.divisor = part.divisor;
        seen.count = part.count;
        if (part.kind == kScaleSixteenths) {
            seen.codes = static_cast<const std::uint8_t*>(codec.arrays[part.array]);
            seen.grid = kSixteenths.value;
            continue;
        }
        if (part.kind != kScaleFloat32 && part.ends < 0) {
            if (!decoded) continue;  // they are about to be made
            seen.values = decoded;
            decoded += part.count;
        } else if (part.ends < 0) {
            seen.values = static_cast<const float*>(codec.arrays[part.array]);
        } else {
            seen.codes = static_cast<const std::uint8_t*>(codec.arrays[part.array]);
            seen.grid = codec.grids.data() + 256 * grids++;
        }
        if (seen.codes && part.divisor == 1) {
            seen.values = decoded;
            decoded += part.count;
        }
    }
    return view;
}

// The scales about to be stored, as floats.
inline ScaleView fresh(const Codec& codec) {
    ScaleView view;
    for (const Part& part : codec.geometry->parts) {
        PartView& seen = view.part[view.parts];
        seen.divisor = part.divisor;
        seen.count = part.count;
        seen.values = codec.fresh[view.parts++];
    }
    return view;
}

inline const float* values_of(const Codebook& codebook) {
    return codebook.wide ? codebook.wide->value.get() : codebook.values.value;
}

inline bool has_negative(const Codebook& codebook) { return values_of(codebook)[0] < 0.0f; }

// Searches want values below 2. What lies beyond the codebook takes the code of its end; NaN, which
// is infinity here, takes the last code.
inline void clamp_to_ends(const Codebook& codebook, float* n, std::int64_t count) {
    const float* value = values_of(codebook);
    const float low = value[0], high = value[codebook.size - 1];
    for (std::int64_t i = 0; i < count; ++i)
        n[i] = n[i] < low ? low : n[i] > high && n[i] <= kLargest ? high : n[i];
}

// The k-th smallest, counted from 0, of values without NaN, of which no smaller one stands after it.
inline float selected(float* value, std::int64_t count, std::int64_t k) {
    std::int64_t first = 0, last = count - 1;
    while (first < last) {
        const float pivot = value[first + (last - first) / 2];
        std::int64_t i = first, j = last;
        while (i <= j) {
            while (value[i] < pivot) ++i;
            while (pivot < value[j]) --j;
            if (i > j) break;
            const float swapped = value[i];
            value[i++] = value[j];
            value[j--] = swapped;
        }
        if (k <= j) {
            last = j;
        } else if (k >= i) {
            first = i;
        } else {
            break;
        }
    }
    return value[k];
}

// See qmaps.normalize.logblock: of positive values and zeros, at most kTile.
inline float quantile_of(const float* x, std::int64_t count, double quantile) {
    float value[kTile];
    std::int64_t some = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        value[some] = x[i];
        some += x[i] != 0.0f ? 1 : 0;
    }
    if (some == 0) return 0.0f;
    const double place = static_cast<double>(some - 1) * quantile;
    const auto below = static_cast<std::int64_t>(place);
    const auto fraction = static_cast<float>(place - static_cast<double>(below));
    const float a = selected(value, some, below);
    float b = below + 1 < some ? value[below + 1] : a;
    for (std::int64_t i = below + 2; i < some; ++i) b = value[i] < b ? value[i] : b;
    return a + fraction * (b - a);
}

// Set the two ends of a log2 range.
inline void log_ends(const float* x, std::int64_t count, double quantile, float* low_end,
                     float* high_end) {
    float high = x[0];
    for (std::int64_t i = 1; i < count; ++i)
        high = is_nan(x[i]) || x[i] > high ? x[i] : high;
    // NaN stays: no comparison with it holds.
    float low = high;
    for (std::int64_t i = 0; i < count; ++i)
        low = x[i] != 0.0f && (is_nan(x[i]) || x[i] < low) ? x[i] : low;
    high = low < 0.0f ? low : high;
    if (quantile != 0.0)
        low = high >= 0.0f && high <= kLargest ? quantile_of(x, count, quantile) : high;
    *low_end = log_end(low);
    *high_end = log_end(high);
}

// Store scales in their format, and put what they stand for in their place. Returns whether one of
// them is far beyond that.
ALWAYS_INLINE inline bool keep_scales(int kind, float* scale, void* stored, std::int64_t first,
                                      std::int64_t count) {
    int far = 0;
    for (std::int64_t b = 0; b < count; ++b) {
        const float largest = scale[b], kept = keep_scale(kind, largest, stored, first + b);
        scale[b] = kept;
        far |= largest > 1.5f * kept ? 1 : 0;
    }
    return far != 0;
}

// Encode a stretch of whole blocks (the tensor's last may be ragged), scales included. Returns
// the bits of the largest magnitude where it comes to be known, else 0; and kSignBit where the
// codebook has no negative value, but one of these elements has a sign.
inline std::uint32_t encode_blocks(const Codec& codec, const float* x, std::int64_t at,
                                   std::int64_t count, Scratch& scratch) {
    const std::int64_t block = codec.block;
    void* scales = codec.arrays[codec.geometry->parts[0].array];
    const int kind = codec.geometry->parts[0].kind;
    const ScaleView view = stored(codec);
    const bool positive = !has_negative(*codec.codebook);
    std::uint32_t most = 0, signs = 0;
    bool far = false;  // beyond the largest scale of a format
    if (view.log) {
        auto* first = static_cast<float*>(scales);
        auto* second = static_cast<float*>(codec.arrays[codec.geometry->parts[1].array]);
        if (view.power) keep_powers(codec, x, at, count);
        for (std::int64_t i = 0, b = at / block; i < count && !view.power; i += block, ++b)
            log_ends(x + i, count - i < block ? count - i : block, codec.geometry->quantile,
                     first + b, second + b);
        for (std::int64_t i = 0; i < count; i += kTile) {
            const std::int64_t some = count - i < kTile ? count - i : kTile;
            normalize_tile(view, x + i, at + i, some, scratch.n + i, scratch);
        }
        if (!view.power && (positive || codec.geometry->quantile != 0.0))
            clamp_to_ends(*codec.codebook, scratch.n, count);
    } else {
        for (std::int64_t i = 0, b = at / block; i < count; i += block, ++b) {
            const std::int64_t some = count - i < block ? count - i : block;
            std::uint32_t largest = positive ? highest_bits(x + i, some) : kSignBit;
            if (largest >= kSignBit) {
                signs = positive ? kSignBit : 0;
                largest = largest_bits(x + i, some);
            }
            most = largest > most ? largest : most;
            scratch.scale[b - at / block] = float_of(largest);
        }
        const std::int64_t first = at / block, blocks = (count + block - 1) / block;
        if (kind == kScaleFloat32) {
            __builtin_memcpy(static_cast<float*>(scales) + first, scratch.scale, blocks * sizeof(float));
        } else if (kind == kScaleBfloat16) {  // a loop of its own is vectorized
            far = keep_scales(kScaleBfloat16, scratch.scale, scales, first, blocks);
        } else {
            far = keep_scales(kind, scratch.scale, scales, first, blocks);
        }
        for (std::int64_t b = 0; b < blocks; ++b)
            scratch.scale[b] = scratch.scale[b] == 0.0f ? 1.0f : scratch.scale[b];
        if (!codec.codebook->wide && most < kInfinityBits && !far) {
            std::uint8_t* codes = codes_of(codec, at, scratch);
            if (encode_divided(codec, x, scratch.scale, block, at, codes, count, scratch)) {
                store_codes_of(codec, at, codes, count, scratch);
                return most | signs;
            }
        }
        for (std::int64_t i = 0, b = at / block; i < count; i += block, ++b)
            divide(x + i, scratch.scale[b - at / block], count - i < block ? count - i : block,
                   scratch.n + i);
        if (far) clamp_to_ends(*codec.codebook, scratch.n, count);
    }
    encode_normalized(codec, view, x, scratch.n, at, count, scratch);
    return most | signs;
}

// Encode a tile under the scale 1, and raise the largest magnitude, which says later whether that
// was the scale.
inline void encode_under_one(const Codec& codec, const float* x, std::int64_t at,
                             std::int64_t count, Scratch& scratch) {
    raise_to(codec.fresh[0], largest_bits(x, count));
    const WideCodebook* wide = codec.codebook->wide.get();
    if (wide && wide->format != Dtype::kFloat32) {
        encode_wide(codec, x, at, count, scratch);
        return;
    }
    __builtin_memcpy(scratch.n, x, count * sizeof(float));
    make_searchable(scratch.n, count);
    clamp_to_ends(*codec.codebook, scratch.n, count);
    encode_normalized(codec, fresh(codec), x, scratch.n, at, count, scratch);
}

// Encode a tile under fresh scales of whole blocks, where that can be done in one go.
inline bool encode_fresh_blocks(const Codec& codec, const PartView& part, const float* x,
                                std::int64_t at, std::int64_t count, Scratch& scratch) {
    const std::int64_t block = part.divisor;
    if (at % block != 0 || at + count > block * part.count) return false;
    const float* scale = part.values + at / block;
    for (std::int64_t b = 0; b * block < count; ++b) {
        if (bits_of(scale[b]) >= kInfinityBits) return false;
        scratch.scale[b] = scale[b] == 0.0f ? 1.0f : scale[b];
    }
    std::uint8_t* codes = codes_of(codec, at, scratch);
    if (!encode_divided(codec, x, scratch.scale, block, at, codes, count, scratch)) return false;
    store_codes_of(codec, at, codes, count, scratch);
    return true;
}

// Encode a tile under the fresh scales.
inline void encode_fresh(const Codec& codec, const ScaleView& view, const float* x,
                         std::int64_t at, std::int64_t count, Scratch& scratch) {
    bool formats = false;
    for (const Part& part : codec.geometry->parts) formats |= part.kind != kScaleFloat32;
    if (view.parts == 1 && !codec.codebook->wide && !formats &&
        encode_fresh_blocks(codec, view.part[0], x, at, count, scratch))
        return;
    normalize_tile(view, x, at, count, scratch.n, scratch);
    if (formats) clamp_to_ends(*codec.codebook, scratch.n, count);
    encode_normalized(codec, view, x, scratch.n, at, count, scratch);
}
