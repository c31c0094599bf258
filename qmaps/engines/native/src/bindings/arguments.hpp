// What bindings share: numbers and addresses from Python as C++ has them. Shapes, types and
// contiguity are checked by qmaps.engines.native, which owns the tensors.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "../engine.hpp"
#include "../floating_point.hpp"
#include "../tensor_info.hpp"
#include "../quantiles.hpp"

namespace nb = nanobind;

namespace qmaps {

using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t,
                       std::uint64_t>;

// The key of stochastic rounding; none: codes are rounded to the nearest.
using Rounding = std::optional<Key>;

// While C++ computes, by IEEE arithmetic, other Python threads run.
struct Unlocked {
    nb::gil_scoped_release released;
    Ieee arithmetic;
};

NoiseKey noise_key(const Key& key);

Codec codec(const Codebook& codebook, const Geometry& geometry, Address packed,
            const std::vector<Address>& arrays);

Codec rounding_codec(const Codebook& codebook, const Geometry& geometry, Address packed,
                     const std::vector<Address>& arrays, const Rounding& rounding);

Elements elements(Address x, int dtype, std::int64_t numel);

}  // namespace qmaps
