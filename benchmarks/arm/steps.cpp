// Kernels of two instruction sets beside each other, without Python, so that they can be
// cross-compiled and run in emulation within seconds.
//
//     steps FILE check STRIDE            compares both, bit for bit; says where they differ
//     steps FILE run SET OPERATION N TIMES     works on N elements; for counting instructions
//
// FILE has a line for each quantizer, as `python -m benchmarks.arm` writes it: name, bits, block, kind of
// scales, rounding (0 nearest, 1 +sr, 2 +qsr), bits of the bend, number of values, then the bits of the
// values, the limits of rounding to nearest, and those of the lower neighbours.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "qmaps/engines/native/src/kernels.hpp"

namespace {

using namespace qmaps;

struct Quantizer {
    std::string name;
    int block = 0, kind = 0, rounding = 0;
    std::unique_ptr<Codebook> codebook;
    Geometry geometry;
};

std::vector<float> read_floats(std::istream& from, int count) {
    std::vector<float> values;
    for (int i = 0; i < count; ++i) {
        std::uint32_t bits;
        from >> bits;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        values.push_back(value);
    }
    return values;
}

// All, or two from number `first` on; the others stay empty.
std::vector<Quantizer> read_quantizers(const char* file, int first = -1) {
    std::vector<Quantizer> all;
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        Quantizer q;
        const int number = static_cast<int>(all.size());
        if (first >= 0 && number != first && number != first + 1) {
            all.push_back({});
            continue;
        }
        int bits = 0, count = 0;
        words >> q.name >> bits >> q.block >> q.kind >> q.rounding;
        const float bend = read_floats(words, 1)[0];
        words >> count;
        const auto values = read_floats(words, count), limits = read_floats(words, count - 1);
        const auto below = read_floats(words, count - 1);
        q.codebook = std::make_unique<Codebook>(values, limits, below, bits);
        q.codebook->bend = bend;
        all.push_back(std::move(q));
    }
    return all;
}

// Memory of one tensor's codes and scales.
struct Stored {
    std::vector<std::uint8_t> packed;
    std::vector<float> scales;
    Geometry geometry;
    Codec codec;
    Stored(const Quantizer& q, std::int64_t numel) {
        const std::int64_t blocks = (numel + q.block - 1) / q.block;
        packed.resize(static_cast<std::size_t>((numel * q.codebook->bits + 7) / 8));
        scales.resize(static_cast<std::size_t>(blocks));
        geometry.parts.push_back({q.block, blocks, 0, -1, q.kind});
        geometry.arrays = 1;
        codec.codebook = q.codebook.get();
        codec.geometry = &geometry;
        codec.stochastic = q.rounding != 0;
        codec.noise.key0 = 12345;
        codec.noise.key1 = q.rounding == 2 ? 0x80000007u : 7u;
        codec.noise.word2 = 99;
        codec.noise.offset = 3;
        codec.packed = packed.data();
        codec.arrays[0] = scales.data();
        codec.block = geometry.local_block(numel);
    }
    // As tasks want it.
    void decode_scales(const Kernels& set) {
        const Part& part = geometry.parts[0];
        if (part.kind == 0) return;
        codec.decoded.resize(scales.size());
        set.widen_scales(part.kind, scales.data(), part.count, codec.decoded.data());
    }
};

void quantize(const Kernels& set, Stored& stored, const float* x, std::int64_t numel, Scratch& scratch) {
    QuantizeTask task;
    task.codec = stored.codec;
    task.x = x;
    task.numel = numel;
    set.quantize_local(task, 0, numel, scratch);
}

void dequantize(const Kernels& set, Stored& stored, float* y, std::int64_t numel, Scratch& scratch) {
    stored.decode_scales(set);
    DequantizeTask task;
    task.codec = stored.codec;
    task.y = y;
    task.numel = numel;
    set.dequantize(task, 0, numel, scratch);
}

// Numbers of both signs and of many magnitudes.
float number(std::uint32_t i) {
    std::uint32_t mixed = i * 2654435761u;
    mixed ^= mixed >> 15;
    mixed *= 2246822519u;
    mixed ^= mixed >> 13;
    const float mantissa = static_cast<float>(static_cast<std::int32_t>(mixed)) / 2147483648.0f;
    return std::ldexp(mantissa, -static_cast<int>(i * 7 % 23 % 12));
}

const Rule& adamw(const Kernels& set) {
    for (int i = 0; i < set.rules.count; ++i)
        if (!std::strcmp(set.rules.rule[i].name, "adamw") && set.rules.rule[i].states == 2)
            return set.rules.rule[i];
    std::abort();
}

struct Moments {
    Stored first, second;
    std::vector<float> p, g;
    Moments(const Quantizer& m, const Quantizer& v, std::int64_t numel)
        : first(m, numel), second(v, numel), p(static_cast<std::size_t>(numel)), g(p.size()) {
        take_gradients(0);
    }
    void take_gradients(std::uint32_t step) {
        for (std::size_t i = 0; i < g.size(); ++i) g[i] = number(static_cast<std::uint32_t>(i) + 7u * step);
    }
};

void step(const Kernels& set, Moments& moments, StepScratch& scratch) {
    ParamTask task;
    task.rule = &adamw(set);
    task.numel = static_cast<std::int64_t>(moments.p.size());
    task.p = moments.p.data();
    task.g = moments.g.data();
    // decay, beta1, beta2, step_size, root_correction, eps, sign, rest1, rest2
    const float scalars[] = {0.9999f, 0.9f, 0.999f, 0.001f, 0.25f, 1e-8f, 1.0f, 0.1f, 0.001f};
    std::memcpy(task.scalars, scalars, sizeof scalars);
    moments.first.decode_scales(set);
    moments.second.decode_scales(set);
    task.state[0].codec = moments.first.codec;
    task.state[1].codec = moments.second.codec;
    set.step_range(task, 0, task.numel, nullptr, scratch);
}

bool same(const char* what, const std::string& name, const void* one, const void* other,
          std::size_t size, std::size_t each) {
    const auto* a = static_cast<const std::uint8_t*>(one);
    const auto* b = static_cast<const std::uint8_t*>(other);
    for (std::size_t i = 0; i < size; ++i)
        if (a[i] != b[i]) {
            std::printf("%s %s differs from element %zu on: %u, %u\n", name.c_str(), what, i / each,
                        a[i], b[i]);
            return false;
        }
    return true;
}

// Not-a-number has a sign and a payload that are not promised.
void make_nan_equal(std::vector<float>& values) {
    for (float& value : values)
        if (value != value) value = NAN;
}

bool compare(const Quantizer& q, const std::vector<float>& x, const char* what, StepScratch& memory) {
    const auto numel = static_cast<std::int64_t>(x.size());
    Stored one(q, numel), other(q, numel);
    quantize(portable_kernels(), one, x.data(), numel, memory.scratch);
    quantize(kernels(), other, x.data(), numel, memory.scratch);
    std::string label = q.name + " of " + what;
    if (!same("codes", label, one.packed.data(), other.packed.data(), one.packed.size(), 1)) return false;
    std::vector<float> y(x.size()), z(x.size());
    dequantize(portable_kernels(), one, y.data(), numel, memory.scratch);
    dequantize(kernels(), other, z.data(), numel, memory.scratch);
    make_nan_equal(y);
    make_nan_equal(z);
    return same("values", label, y.data(), z.data(), 4 * y.size(), 4);
}

bool check(const std::vector<Quantizer>& all, std::uint32_t stride, StepScratch& memory) {
    bool right = true;
    for (const Quantizer& q : all) {
        const bool has_sign = q.codebook->values.value[0] < 0.0f;
        // Every float of [-1, 1] by the stride, under scale 1; and each limit with its neighbours.
        std::vector<float> x;
        const auto add = [&](float value) {
            if (x.size() % static_cast<std::size_t>(q.block) == 0) x.push_back(1.0f);
            x.push_back(value);
        };
        for (std::uint32_t bits = 0; bits <= 0x3F800000u; bits += stride) {
            float value;
            std::memcpy(&value, &bits, sizeof value);
            add(value);
            if (has_sign) add(-value);
        }
        for (const Search* search : {&q.codebook->nearest, &q.codebook->stochastic})
            for (int i = 0; i < search->count; ++i) {
                const float limit = search->limit[i];
                for (const float value : {std::nextafter(limit, -1.0f), limit, std::nextafter(limit, 1.0f)})
                    if (has_sign || value >= 0.0f) add(value);
            }
        for (int i = 0; i < q.codebook->size; ++i) add(q.codebook->values.value[i]);
        right = compare(q, x, "[-1, 1]", memory) && right;
        // Ragged ends, zeros of both signs, subnormal and great numbers, tiny blocks, NaN, infinity.
        for (const int size : {1, 3, 15, 16, 17, 37, 63, 64, 250, 1000, 4133}) {
            std::vector<float> some;
            for (int i = 0; i < size; ++i) {
                float value = number(static_cast<std::uint32_t>(i + size));
                if (!has_sign) value = std::fabs(value);
                if (i % 11 == 0) value = 0.0f;
                if (i % 11 == 5) value = -0.0f;
                if (i / 300 == 1) value *= 1e-36f;
                if (i / 300 == 2) value *= 1e-44f;
                if (i / 300 == 3) value *= 1e38f;
                some.push_back(value);
            }
            right = compare(q, some, "numbers", memory) && right;
            some[static_cast<std::size_t>(size) / 2] = NAN;
            right = compare(q, some, "NaN", memory) && right;
            some[static_cast<std::size_t>(size) / 2] = HUGE_VALF;
            right = compare(q, some, "infinity", memory) && right;
            some[static_cast<std::size_t>(size) / 2] = -HUGE_VALF;
            right = compare(q, some, "minus infinity", memory) && right;
        }
    }
    // Steps of each pair of a signed quantizer and the next one, which is unsigned.
    for (std::size_t i = 0; i + 1 < all.size(); ++i) {
        const Quantizer &m = all[i], &v = all[i + 1];
        if (m.codebook->values.value[0] >= 0.0f || v.codebook->values.value[0] < 0.0f) continue;
        for (const std::int64_t numel : {1000, 5000, 4096}) {
            Moments one(m, v, numel), other(m, v, numel);
            for (std::uint32_t n = 0; n < 3; ++n) {
                one.take_gradients(n);
                other.take_gradients(n);
                step(portable_kernels(), one, memory);
                step(kernels(), other, memory);
            }
            const std::string label = m.name + " + " + v.name;
            right = same("parameters", label, one.p.data(), other.p.data(), 4 * one.p.size(), 4) && right;
            right = same("first", label, one.first.packed.data(), other.first.packed.data(),
                         one.first.packed.size(), 1) && right;
            right = same("second", label, one.second.packed.data(), other.second.packed.data(),
                         one.second.packed.size(), 1) && right;
        }
    }
    return right;
}

void run(const Kernels& set, const char* file, const std::string& operation, std::int64_t numel,
         int times, StepScratch& memory) {
    const int number_of_first = std::atoi(operation.c_str() + operation.find(':') + 1);
    const auto index = static_cast<std::size_t>(number_of_first);
    const auto all = read_quantizers(file, number_of_first);
    const Quantizer& q = all.at(index);
    if (operation.rfind("step", 0) == 0) {
        Moments moments(q, all.at(index + 1), numel);
        for (int n = 0; n < times; ++n) step(set, moments, memory);
        return;
    }
    std::vector<float> x(static_cast<std::size_t>(numel));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::fabs(number(static_cast<std::uint32_t>(i)));
    Stored stored(q, numel);
    if (operation.rfind("rule", 0) == 0) {
        std::vector<float> m(x), v(x), p(x);
        float* states[4] = {m.data(), v.data(), nullptr, nullptr};
        const float scalars[] = {0.9999f, 0.9f, 0.999f, 0.001f, 0.25f, 1e-8f, 1.0f, 0.1f, 0.001f};
        Ahead ahead;
        for (std::int64_t i = 0; i < times * numel; i += kTile) {
            const std::int64_t at = i % numel;
            float* some[4] = {states[0] + at, states[1] + at, nullptr, nullptr};
            adamw(set).apply(p.data() + at, x.data() + at, some, kTile, scalars, ahead);
        }
    } else if (operation.rfind("encode", 0) == 0) {
        for (int n = 0; n < times; ++n) quantize(set, stored, x.data(), numel, memory.scratch);
    } else if (operation.rfind("decode", 0) == 0) {
        for (int n = 0; n < times; ++n) dequantize(set, stored, x.data(), numel, memory.scratch);
    }
}

}  // namespace

#if !defined(QMAPS_ARM)
const qmaps::Kernels& qmaps::kernels() { return portable_kernels(); }
#else
const qmaps::Kernels& qmaps::kernels() { return neon_kernels(); }
#endif

int main(int count, char** words) {
    const std::vector<std::string> word(words, words + count);
    const auto memory = std::make_unique<StepScratch>();
    if (count == 4 && word[2] == "check") {
        const auto all = read_quantizers(words[1]);
        const bool right = check(all, static_cast<std::uint32_t>(std::stoul(word[3])), *memory);
        std::printf("%s, %zu quantizers\n", right ? "the same bits" : "other bits", all.size());
        return right ? 0 : 1;
    }
    if (count != 7) return 2;
    const Kernels& set = word[3] == "portable" ? portable_kernels() : kernels();
    run(set, words[1], word[4], std::stoll(word[5]), std::stoi(word[6]), *memory);
    return 0;
}
