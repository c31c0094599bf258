// Error feedback of stretches of a state; see qmaps.algebra.feedback.

// Add what the last encoding lost to new values. `lost` is room for it.
inline void add_residual(const StateTask& state, std::int64_t at, std::int64_t count, float* values,
                         float* lost, Scratch& scratch) {
    decode_range(state.residual, stored(state.residual), at, count, lost, scratch);
    for (std::int64_t i = 0; i < count; ++i) values[i] = carried(values[i], lost[i]);
}

// What is encoded of them: under an unsigned map at least 0.
inline void keep_positive(const StateTask& state, const float* values, std::int64_t count,
                          float* to) {
    for (std::int64_t i = 0; i < count; ++i)
        to[i] = state.positive && values[i] < 0.0f ? 0.0f : values[i];
}

// The scales that a stretch was just encoded under, and where its first element lies in them.
struct ScalesOf {
    ScaleView view;
    std::int64_t place;
};

inline ScalesOf scales_after(const StateTask& state, std::int64_t at, std::int64_t count,
                             const float* one, Scratch& scratch) {
    const Codec& codec = state.codec;
    ScaleView view;
    view.parts = 1;
    if (state.under_one()) {
        view.part[0].values = one;
        return {view, at};
    }
    if (codec.block == 0) return {fresh(codec), at};
    const Part& part = codec.geometry->parts[0];
    if (part.kind == kScaleFloat32) return {stored(codec), at};
    // Those of other formats are kept as floats from before the step.
    const std::int64_t first = at / codec.block, size = part.kind == kScalePowerOfTwo ? 1 : 2;
    view.part[0].divisor = codec.block;
    view.part[0].count = (count + codec.block - 1) / codec.block;
    view.part[0].values = scratch.scale;
    widen_scales(part.kind, static_cast<const std::uint8_t*>(codec.arrays[part.array]) + first * size,
                 view.part[0].count, scratch.scale);
    return {view, 0};
}

// Normalized values of the codes of a tile.
inline void look_up_new(const Codec& codec, std::int64_t at, std::int64_t count, float* out,
                        Scratch& scratch) {
    if (const WideCodebook* wide = codec.codebook->wide.get()) {
        unpack_wide(codec.packed, codec.codebook->bits, at, count, scratch.wide);
        look_up_wide(*wide, scratch.wide, count, out);
    } else {
        unpack(codec.packed, codec.codebook->bits, at, count, scratch.codes);
        look_up(codec.codebook->values, scratch.codes, false, out, count);
    }
}

// What an encoding of a tile lost, in the place of its values.
inline void lost_of_tile(const StateTask& state, const ScaleView& view, std::int64_t place,
                         std::int64_t at, std::int64_t count, float* y, Scratch& scratch) {
    const Codebook& codebook = *state.codec.codebook;
    const float* values = codebook.wide ? codebook.wide->value.get() : codebook.values.value;
    const float ends[3] = {values[0], values[1], values[codebook.size - 1]};
    const bool is_signed = !state.positive;
    float decoded[kTile];
    look_up_new(state.codec, at, count, decoded, scratch);
    if (!view.log) {
        float scale[kTile];
        element_scales(view, place, count, scale);
        for (std::int64_t i = 0; i < count; ++i) {
            const float s = scale[i];
            y[i] = residual_of(y[i], decoded[i] * s, ends[0] * s, ends[1] * s, ends[2] * s,
                               is_signed);
        }
        return;
    }
    log_values(view, place, count, decoded, scratch.low, scratch.high);
    float limit[3][kTile];
    for (int e = 0; e < 3; ++e) {
        for (std::int64_t i = 0; i < count; ++i) limit[e][i] = ends[e];
        log_values(view, place, count, limit[e], scratch.low, scratch.high);
    }
    for (std::int64_t i = 0; i < count; ++i)
        y[i] = residual_of(y[i], decoded[i], limit[0][i], limit[1][i], limit[2][i], is_signed);
}

// What an encoding of these values lost, in their place.
inline void lost_of(const StateTask& state, std::int64_t at, std::int64_t count, float* values,
                    Scratch& scratch) {
    const float one = 1.0f;
    const ScalesOf scales = scales_after(state, at, count, &one, scratch);
    for (std::int64_t i = 0; i < count; i += kTile) {
        const std::int64_t some = count - i < kTile ? count - i : kTile;
        lost_of_tile(state, scales.view, scales.place + i, at + i, some, values + i, scratch);
    }
}

// Encode new values, which are overwritten, with what the last encoding lost added, and keep what
// this one loses. `room` is for as many more.
inline void encode_with_feedback(const StateTask& state, float* values, std::int64_t at,
                                 std::int64_t count, float* room, Scratch& scratch) {
    add_residual(state, at, count, values, room, scratch);
    keep_positive(state, values, count, room);
    encode_range(state, room, at, count, scratch);
    lost_of(state, at, count, values, scratch);
    encode_blocks(state.residual, values, at, count, scratch);
}
