// The Python module; bindings/ has a file for each subject.
#include <nanobind/nanobind.h>

#include "bindings/register.hpp"

using namespace qmaps;

NB_MODULE(_core, module) {
    module.doc() = "The native engine of qmaps; use it through qmaps.";
    register_codebooks(module);
    register_quantize(module);
    register_tensor_info(module);
    register_metrics(module);
    register_least_squares(module);
    register_step(module);
    register_quantiles(module);
    register_build(module);
}
