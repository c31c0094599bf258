// Everything of one instruction set, in a namespace of its own: QMAPS_ISA names it, and
// QMAPS_SEARCH the file with its search. No templates or inline functions of the standard library
// here: the linker would keep one copy, perhaps made for a newer processor, for all sets.
#include "../kernels.hpp"

// Where a call would keep a loop from being vectorized, or registers in memory.
#define ALWAYS_INLINE __attribute__((always_inline))

// Before loops: as many vectors at once as an instruction set has room for; else the compiler chooses.
#if !defined(QMAPS_SIDE_BY_SIDE)
#define QMAPS_SIDE_BY_SIDE(vectors)
#endif

namespace qmaps {
namespace {
#include "qmaps/engines/kernels/all.hpp"
#include "generated/rules.hpp"

#include "memory.hpp"
#include "split.hpp"
#include "philox.hpp"
#include "pack.hpp"
#include "scales.hpp"
#include QMAPS_SEARCH
#include "powers.hpp"
#include "wide.hpp"
#include "codec.hpp"
#include "quantize.hpp"
#include "sums.hpp"
#include "updates.hpp"
#include "least_squares.hpp"
#include "rules.hpp"
#include "factored.hpp"
#include "ranges.hpp"
#include "step.hpp"
#include "selection.hpp"
#include "limits.hpp"
}  // namespace

const Kernels& QMAPS_KERNELS() {
    static constexpr Kernels table = {QMAPS_ISA, quantize_local, scan, maxima,
                                      quantize_fresh, dequantize, step_range, step_maxima,
                                      step_norms, factored_sums, row_sum,
                                      {kRules, sizeof kRules / sizeof kRules[0]}, scale_grid,
                                      onto_grid, widen_scales, round_scales, store_scales,
                                      kSelection, kMetrics, kLeastSquares, divisions, roots, shuffles,
                                      decode_shuffles, encode_shuffles};
    return table;
}

}  // namespace qmaps
