// Blocks whose range a power expands; see qmaps.normalize.range_expansion.

// The exponents that codes stand for; a state begins with 0, as under 1.
struct Sixteenths {
    float value[256] = {};
    constexpr Sixteenths() {
        for (int code = 0; code < 256; ++code)
            value[code] = static_cast<float>(code < 1 ? 1 : code) / 16.0f;
    }
};
inline constexpr Sixteenths kSixteenths;

// Normalized values under each element's scale and exponent, and the values of such.
inline void put_powers(const float* x, const float* scale, const float* exponent,
                       std::int64_t count, float* n) {
    for (std::int64_t i = 0; i < count; ++i) n[i] = expanded(x[i], scale[i], exponent[i]);
}

inline void take_powers(const float* scale, const float* exponent, std::int64_t count,
                        float* values) {
    for (std::int64_t i = 0; i < count; ++i)
        values[i] = unexpanded(values[i], scale[i], exponent[i]);
}

// Store the scales and exponents of whole blocks.
inline void keep_powers(const Codec& codec, const float* x, std::int64_t at, std::int64_t count) {
    const Geometry& geometry = *codec.geometry;
    auto* scales = static_cast<float*>(codec.arrays[geometry.parts[0].array]);
    auto* sixteenths = static_cast<std::uint8_t*>(codec.arrays[geometry.parts[1].array]);
    const float wanted = 16.0f * log2_of(geometry.ratio);
    for (std::int64_t i = 0, b = at / codec.block; i < count; i += codec.block, ++b) {
        const std::int64_t some = count - i < codec.block ? count - i : codec.block;
        const std::uint32_t most = largest_bits(x + i, some);
        std::uint32_t least = most;
        for (std::int64_t j = i; j < i + some; ++j) {
            const std::uint32_t magnitude = bits_of(x[j]) & 0x7FFFFFFFu;
            least = magnitude != 0 && magnitude < least ? magnitude : least;
        }
        const bool none = most == 0 || most > kInfinityBits;
        scales[b] = float_of(most);
        sixteenths[b] = static_cast<std::uint8_t>(
            none ? sixteenths_of(1.0f, 1.0f, wanted)
                 : sixteenths_of(float_of(least), float_of(most), wanted));
    }
}
