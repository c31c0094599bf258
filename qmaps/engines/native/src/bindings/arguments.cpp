#include "arguments.hpp"

#include <stdexcept>
#include <string>

namespace qmaps {

NoiseKey noise_key(const Key& key) {
    NoiseKey noise;
    std::tie(noise.key0, noise.key1, noise.word1, noise.word2, noise.word3, noise.offset) = key;
    return noise;
}

Codec codec(const Codebook& codebook, const Geometry& geometry, Address packed,
            const std::vector<Address>& arrays) {
    if (static_cast<int>(arrays.size()) != geometry.arrays)
        throw std::invalid_argument("scales: " + std::to_string(arrays.size()) + " arrays, " +
                                    std::to_string(geometry.arrays) + " are needed");
    Codec made;
    made.codebook = &codebook;
    made.geometry = &geometry;
    made.packed = reinterpret_cast<std::uint8_t*>(packed);
    for (std::size_t i = 0; i < arrays.size(); ++i)
        made.arrays[i] = reinterpret_cast<void*>(arrays[i]);
    return made;
}

Codec rounding_codec(const Codebook& codebook, const Geometry& geometry, Address packed,
                     const std::vector<Address>& arrays, const Rounding& rounding) {
    Codec made = codec(codebook, geometry, packed, arrays);
    made.stochastic = rounding.has_value();
    if (rounding) made.noise = noise_key(*rounding);
    return made;
}

Elements elements(Address x, int dtype, std::int64_t numel) {
    return {reinterpret_cast<const void*>(x), static_cast<Dtype>(dtype), numel};
}

}  // namespace qmaps
