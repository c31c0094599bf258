#include "arguments.hpp"
#include "register.hpp"

namespace qmaps {

void register_quantize(nb::module_& module) {
    module.def(
        "quantize",
        [](const Codebook& codebook, const Geometry& geometry, Address x, int dtype,
           std::int64_t numel, Address packed, const std::vector<Address>& arrays,
           const Rounding& rounding, bool check, bool keep, bool refuse_negative, int threads) {
            QuantizeTask task;
            task.codec = rounding_codec(codebook, geometry, packed, arrays, rounding);
            task.x = reinterpret_cast<const void*>(x);
            task.dtype = static_cast<Dtype>(dtype);
            task.numel = numel;
            task.check = check;
            task.keep = keep;
            task.refuse_negative = refuse_negative;
            Unlocked unlocked;
            return quantize(task, threads);
        },
        "Encode a tensor; returns 1 if it saw NaN or infinity, plus 2 if a refused negative.");

    module.def(
        "dequantize",
        [](const Codebook& codebook, const Geometry& geometry, Address packed,
           const std::vector<Address>& arrays, Address y, int dtype, std::int64_t numel,
           int threads) {
            DequantizeTask task;
            task.codec = codec(codebook, geometry, packed, arrays);
            task.y = reinterpret_cast<void*>(y);
            task.dtype = static_cast<Dtype>(dtype);
            task.numel = numel;
            Unlocked unlocked;
            dequantize(task, threads);
        },
        "Decode a tensor.");
}

}  // namespace qmaps
