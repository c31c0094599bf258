// Search for one value: by pieces where there are some, else by a table by the value's upper 16 bits
// and full comparisons.

inline std::uint8_t search_one(const Search& search, float value) {
    const Pieces& pieces = search.pieces;
    if (pieces.entry) {
        const auto bits = static_cast<std::int32_t>(bits_of(value));
        const std::uint32_t key = piece_key(bits, pieces.loose == 17);
        const std::uint32_t rest = key & ((1u << pieces.loose) - 1u);
        const std::uint32_t entry = pieces.entry[key >> pieces.loose & (kPieces - 1)];
        return static_cast<std::uint8_t>((entry + rest) >> pieces.loose);
    }
    const int code = search.first[ordered_key(bits_of(value))];
    return static_cast<std::uint8_t>(refined(search.limit, code, search.steps, value));
}
