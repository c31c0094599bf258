// Ranges of a state, which may be longer than a tile.

// Decode, in tiles where scales differ by element.
inline void decode_range(const Codec& codec, const ScaleView& view, std::int64_t at,
                         std::int64_t count, float* out, Scratch& scratch) {
    for (std::int64_t i = 0; i < count; i += kTile) {
        const std::int64_t some = count - i < kTile ? count - i : kTile;
        decode_tile(codec, view, at + i, some, out + i, scratch);
    }
}

inline void encode_range(const StateTask& state, const float* values, std::int64_t at,
                         std::int64_t count, Scratch& scratch) {
    if (state.codec.block > 0) {
        encode_blocks(state.codec, values, at, count, scratch);
        return;
    }
    const ScaleView view = fresh(state.codec);
    for (std::int64_t i = 0; i < count; i += kTile) {
        const std::int64_t some = count - i < kTile ? count - i : kTile;
        if (state.under_one()) {
            encode_under_one(state.codec, values + i, at + i, some, scratch);
        } else {
            encode_fresh(state.codec, view, values + i, at + i, some, scratch);
        }
    }
}
