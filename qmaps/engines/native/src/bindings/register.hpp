// Each adds the functions and classes of one subject to the Python module.
#pragma once

#include <nanobind/nanobind.h>

namespace qmaps {

void register_codebooks(nanobind::module_& module);
void register_quantize(nanobind::module_& module);
void register_tensor_info(nanobind::module_& module);
void register_metrics(nanobind::module_& module);
void register_least_squares(nanobind::module_& module);
void register_step(nanobind::module_& module);
void register_quantiles(nanobind::module_& module);
void register_build(nanobind::module_& module);

}  // namespace qmaps
