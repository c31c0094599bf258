"""Emulated kernels give the quantiles of the reference, bit for bit."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchmarks.gpu.kernels import usage
from qmaps import quantiles
from qmaps.cuda import compiler, layout
from qmaps.cuda import quantiles as cuda
from qmaps.cuda.compiler import kernel
from qmaps.cuda.source import source_of
from qmaps.errors import NonFiniteError
from qmaps.ops.backends import use_backend
from tests.cuda.emulation import EmulatedEngine, build
from tests.quantile_data import (
    METHODS,
    any_bits,
    assert_as_reference,
    bits,
    generator,
    normal,
    pick,
)

pytestmark = pytest.mark.slow


def clusters(n: int) -> Tensor:
    """A cell for each rank from the first digits on, and many elements in each."""
    return pick(any_bits(700), n) * (1 + torch.randint(64, (n,), generator=generator()) * 2.0**-23)


CASES: dict[str, Callable[[int], Tensor]] = {
    "normal": normal,
    "constant": lambda n: torch.full((n,), -0.3),
    "zero": torch.zeros,
    "seven values": lambda n: pick(normal(7), n),
    "signed zeros": lambda n: pick([0.0, -0.0, 1e-45, -1e-45], n),
    "subnormal": lambda n: normal(n) * 1e-40,
    "huge": lambda n: pick([3.4028235e38, -3.4028235e38, 3.4028233e38, 1.0], n),
    "close": lambda n: 1 + torch.randint(2**14, (n,), generator=generator()) * 2.0**-23,
    "sorted": lambda n: normal(n).sort().values,
    "reversed": lambda n: normal(n).sort(descending=True).values,
    "any bits": any_bits,
    "clusters": lambda n: clusters(n).nan_to_num(1.0, 1.0, 1.0),
}


@pytest.mark.parametrize("case", CASES)
def test_every_distribution(case: str, on_device: EmulatedEngine) -> None:
    assert_as_reference(CASES[case](10_007))
    ran = {name.split("<")[0] for name in on_device.launched}
    assert ran == {"find_quantiles", "add_rows"}


def test_every_size(on_device: EmulatedEngine) -> None:
    for n, num in ((1, 2), (2, 7), (5, 2), (255, 256), (4096, 300), (4097, 2)):
        assert_as_reference(normal(n) * 3, num)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype, on_device: EmulatedEngine) -> None:
    for n, num in ((1, 2), (5, 7), (4097, 256)):
        assert_as_reference((normal(n) * 3).to(dtype), num)
    # All bit patterns of a number, each more than once.
    every = torch.arange(-(2**15), 2**15, 5, dtype=torch.int32).to(torch.int16).view(dtype)
    assert_as_reference(every[every.isfinite()].repeat(2), 300, 0.0, METHODS[:2])


def test_other_dtypes_are_converted(on_device: EmulatedEngine) -> None:
    assert_as_reference(normal(100).double() + 1e-12, 7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_views(dtype: torch.dtype, on_device: EmulatedEngine) -> None:
    x = normal(5000).to(dtype)
    for view in (x[1:], x[3:], x[::7], x.view(50, 100).t()):
        assert_as_reference(view, 16)


@pytest.mark.parametrize("offset", [0.0, 0.3])
def test_offsets(offset: float, on_device: EmulatedEngine) -> None:
    assert_as_reference(normal(5000), 9, offset)


@pytest.mark.parametrize("chunk", [1, 3, 16, 17, 100, 1024, 4096, 5000])
def test_chunks(chunk: int, on_device: EmulatedEngine) -> None:
    x = normal(10_300)
    with use_backend("reference"):
        expected = quantiles.sram(x, 33, chunk)
    assert bits(quantiles.sram(x, 33, chunk)) == bits(expected)


def test_sums_go_on_from_one_batch_of_chunks_to_the_next(
    on_device: EmulatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "WORKSPACE", 40 * 150)
    x = normal(7 * 1000 + 3) * 10.0 ** torch.randint(-6, 6, (7003,), generator=generator())
    with use_backend("reference"):
        expected = quantiles.sram(x, 40, 7)
    assert bits(quantiles.sram(x, 40, 7)) == bits(expected)
    # 1000 chunks of seven in batches of 150, and a remainder; sums of more than 128 rows.
    assert len(on_device.launched) == 2 * (7 + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_nan_and_infinity_are_counted(dtype: torch.dtype, on_device: EmulatedEngine) -> None:
    for n in (3, 4999):
        x = normal(n).to(dtype)
        x[0], x[n // 2], x[-1] = -math.nan, -math.inf, math.inf
        for method in METHODS:
            for backend in ("native", "reference"):
                with use_backend(backend), pytest.raises(NonFiniteError) as caught:
                    method(x, 1000)
                assert str(caught.value) == (
                    "x holds 3 NaN or infinite elements; all elements must be finite"
                )


SORT = """
template <int kLog>
void sort(std::uint32_t* const keys) {
    __shared__ std::uint32_t shared[kSortWords];
    std::uint32_t key[kKeys];
    for (int k = 0; k < kKeys; ++k) key[k] = keys[threadIdx.x * kKeys + k];
    sort_keys<kLog>(key, shared);
    share_keys(key, shared);
    for (int i = threadIdx.x; i < kSorted; i += kThreads) keys[i] = shared[sorted_word(i)];
    __syncthreads();
}
extern "C" void run(std::uint32_t* keys, bool fibers) {
    emulation::launch(sort<LOG>, 1, kThreads, &keys, fibers);
}
"""


@pytest.mark.parametrize("log", [0, 1, 2, 3, 4, 5, 8, 9, 11, 12])
def test_the_block_sorts(log: int, device: EmulatedEngine, request: pytest.FixtureRequest) -> None:
    code = SORT.replace("LOG", str(log))
    library = build(source_of("sort.cuh"), code, request.config.cache.mkdir("cuda-emulation"))
    size = 1 << log
    random = torch.randint(2**32, (layout.SORTED,), generator=generator())
    # Zeros and ones: a network that sorts all of these sorts everything.
    for keys in (random, random % 2 * (2**32 - 1), random % 5, random.sort().values):
        expected = keys.view(-1, size).sort(dim=1).values.view(-1)
        for fibers in (True, False):
            words = keys.to(torch.uint32)
            library.run(ctypes.c_void_p(words.data_ptr()), fibers)
            assert torch.equal(words.to(torch.int64), expected)


@pytest.mark.skipif(bool(compiler.missing()), reason=compiler.missing())
def test_kernels_compile_without_spills() -> None:
    finds = [kernel("find_quantiles", type_, 12) for type_ in ("float", "F16")]
    for entry in [*finds, kernel("add_rows")]:
        used = usage(compiler.compile_now(entry, "sm_90"))
        assert used["spill_stores"] == used["spill_loads"] == used["stack"] == 0, (entry, used)
        assert used["registers"] <= 96, (entry, used)
