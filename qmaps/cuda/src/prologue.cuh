// Step prologue: counts the step and computes its scalars; see qmaps.engines.step_scalars.
#pragma once

#include "layout.cuh"

namespace qmaps {

// Argument of `begin_step`.
struct Prologue {
    Parameter* parameters;
    std::int64_t count;
    const StepScalar* step_scalars;    // kMaxScalars for each group
    const std::int64_t* resets;   // the step after which each parameter's states began
    const float* found_inf;       // not 0: gradients overflowed; null: nobody looked
    const int* bad;               // not 0: gradients are not finite where that stops the step
    int* skip;                    // becomes what both say
    std::int64_t* skipped;        // steps left out so far
};

// By squaring; qmaps.engines.step_scalars.power.
__device__ __noinline__ double power(double base, std::uint64_t exponent) {
    double result = 1.0;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1) result *= base;
        base *= base;
    }
    return result;
}

// See qmaps.engines.step_scalars.log: the same operations in the same order.
__device__ __noinline__ double double_log_of(double x) {
    double exponent = 0.0;
    while (x < 0.7071067811865476) {
        x *= 2.0;
        exponent -= 1.0;
    }
    const double s = (x - 1.0) / (x + 1.0);
    const double z = s * s;
    double series = 0.0;
#pragma unroll 1
    for (int k = 23; k > 0; k -= 2) series = series * z + 1.0 / k;
    return exponent * 0.693147180369123816490 +
           (2.0 * s * series + exponent * 1.90821492927058770002e-10);
}

// See qmaps.engines.step_scalars.exp.
__device__ __noinline__ double double_exp_of(double y) {
    if (y < -745.0) return 0.0;
    const int k = static_cast<int>(-y * 1.4426950408889634 + 0.5);
    const double f = (y + k * 0.693147180369123816490) + k * 1.90821492927058770002e-10;
    double result = 1.0;
#pragma unroll 1
    for (int n = 15; n > 0; --n) result = result * f / n + 1.0;
    for (int i = 0; i < k; ++i) result *= 0.5;
    return result;
}

// See qmaps.engines.step_scalars.Power.
QMAPS_INLINE double step_power(double exponent, std::uint64_t step) {
    return double_exp_of(exponent * -double_log_of(1.0 / step));
}

// See qmaps.engines.step_scalars.Lengthened.
QMAPS_INLINE double lengthened(double last, double start, double steps, std::uint64_t step) {
    if (step >= steps) return last;
    const double share = step / steps;
    const double first = start > 0.0 ? 1.0 / double_log_of(start) : 0.0;
    const double decay =
        double_exp_of(1.0 / ((1.0 - share) * first + share * (1.0 / double_log_of(last))));
    return decay < last ? decay : last;
}

// See qmaps.engines.step_scalars.nesterov_momentum.
QMAPS_INLINE double nesterov_momentum(double beta1, double decay, std::uint64_t step) {
    return beta1 * (1.0 - 0.5 * double_exp_of(static_cast<double>(step) * decay * double_log_of(0.96)));
}

// See qmaps.engines.step_scalars.NesterovGradient.product.
QMAPS_INLINE float nesterov_product(const StepScalar& given, std::uint64_t step, float before) {
    return static_cast<float>(before * nesterov_momentum(given.b, given.c, step));
}

// See qmaps.engines.step_scalars.AveragedRest.
QMAPS_INLINE double averaged_rest(double warmup, double power, std::uint64_t step) {
    const double growing = step < warmup ? static_cast<double>(step) : warmup;
    double total = growing;
    if (growing > 0.0 && power > 0.0) {
        total = (growing + 1.0) / 2.0;
        if (power > 1.0) total = total * (2.0 * growing + 1.0) / (3.0 * growing);
    }
    return 1.0 - 1.0 / (total + (step - growing));
}

// Added to the kind of a step scalar whose tensor holds a float64.
constexpr int kDouble = 32;
static_assert(kStepScalarKinds <= kDouble);

// Its value in this step, with the product of NAdam's momenta before it; `at` of the class of the same
// name in qmaps.engines.step_scalars, from which StepScalarKind is made.
QMAPS_INLINE double value_of(const StepScalar& given, std::uint64_t step, float before) {
    double a = given.a;
    if (given.tensor)
        a = given.kind & kDouble ? *reinterpret_cast<const double*>(given.tensor)
                                 : static_cast<double>(*given.tensor);
    const double b = given.b;
    switch (static_cast<StepScalarKind>(given.kind & ~kDouble)) {
        case kStepScalar: return a;
        case kCorrected: return a / (1.0 - power(b, step));
        case kRootCorrection: return double_root_of(1.0 - power(b, step));
        case kDecoupled: return 1.0 - a * b;
        case kFirst: return step == 1 ? a : b;
        case kSlowing: return a / (1.0 + static_cast<double>(step - 1) * b);
        case kWarmed: return step < b ? a * (step / b) : a;
        case kLengthened: return lengthened(a, b, given.c, step);
        case kLengthenedRest: return 1.0 - lengthened(a, b, given.c, step);
        case kPower: return step_power(a, step);
        case kPowerRest: return 1.0 - step_power(a, step);
        case kUnbiased: return (1.0 - a) / (1.0 - power(a, step));
        case kUnbiasedRest: return a * (1.0 - power(a, step - 1)) / (1.0 - power(a, step));
        case kRelativeStep: {
            const double relative = 1.0 / double_root_of(step);
            return relative < a ? relative : a;
        }
        case kNesterovGradient:
            return a * (1.0 - nesterov_momentum(b, given.c, step)) /
                   (1.0 - nesterov_product(given, step, before));
        case kNesterovMoment: {
            const double following = nesterov_momentum(b, given.c, step + 1);
            return a * following / (1.0 - nesterov_product(given, step, before) * following);
        }
        case kAveragedRest: return averaged_rest(a, b, step);
    }
    return a;
}

// The random numbers of a step, whose upper bits stand above the purpose.
QMAPS_INLINE void take_step(Noise& noise, std::uint64_t step) {
    noise.word3 = static_cast<std::uint32_t>(step);
    noise.key1 = (noise.key1 & (kSpread | 0xFFu)) | static_cast<std::uint32_t>(step >> 32 << 8);
}

// Count the step, unless it is left out, and work out every parameter's scalars.
__global__ void begin_step(const Prologue task) {
    const bool skips = (task.found_inf && *task.found_inf != 0.0f) || (task.bad && *task.bad);
    const std::int64_t number =
        static_cast<std::int64_t>(blockIdx.x) * kThreads + static_cast<std::int64_t>(threadIdx.x);
    if (number == 0) {
        *task.skip = skips;
        if (skips) ++*task.skipped;
    }
    if (number >= task.count || skips) return;
    Parameter& parameter = task.parameters[number];
    const double counted = *parameter.counter + 1.0;
    *parameter.counter = counted;
    parameter.step = static_cast<std::uint64_t>(counted);
    take_step(parameter.noise, parameter.step);
    for (int k = 0; k < kMaxStates; ++k) take_step(parameter.state[k].noise, parameter.step);
    const StepScalar* step_scalars = task.step_scalars + parameter.group * kMaxScalars;
    const std::uint64_t since = parameter.step - static_cast<std::uint64_t>(task.resets[number]);
    const float before = parameter.product ? *parameter.product : 1.0f;
    for (int i = 0; i < kMaxScalars; ++i) {
        const StepScalar& scalar = step_scalars[i];
        parameter.scalars[i] = static_cast<float>(value_of(scalar, since, before));
        if (parameter.product && (scalar.kind & ~kDouble) == kNesterovGradient)
            *parameter.product = nesterov_product(scalar, since, before);
    }
}

// Words for memory of the device, in the arguments of a launch: no host memory has to outlive it.
constexpr int kWritten = 480;
struct Write {
    std::uint64_t* to;
    std::int64_t count;
    std::uint64_t word[kWritten];
};

__global__ void write_words(const Write given) {
    for (std::int64_t i = threadIdx.x; i < given.count; i += kThreads) given.to[i] = given.word[i];
}

}  // namespace qmaps
