// What bindings share: numbers and addresses from Python as C++ has them. Shapes, types and
// contiguity are checked by qmaps.engines.native, which owns the tensors.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "../engine.hpp"
#include "../looks.hpp"
#include "../quantiles.hpp"

namespace nb = nanobind;

namespace qmaps {

using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t,
                       std::uint64_t>;

NoiseKey noise_key(const Key& key);

Codec codec(const Codebook& codebook, const Geometry& geometry, Address packed,
            const std::vector<Address>& arrays);

// One that rounds stochastically where there is a key.
Codec rounding_codec(const Codebook& codebook, const Geometry& geometry, Address packed,
                     const std::vector<Address>& arrays, const std::vector<Key>& key);

Elements elements(Address x, int dtype, std::int64_t numel);

}  // namespace qmaps
