"""GPUs of the model of steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    """Numbers of one GPU.

    Attributes:
        name: name of the product.
        arch: architecture of its kernels.
        processors: number of multiprocessors.
        clock: boost clock in Hz.
        bandwidth: memory bandwidth in bytes per second.
        float32: float32 operations of a multiprocessor per clock.
        threads: largest number of resident threads of a multiprocessor.
        shared: shared memory of a multiprocessor in bytes.
        source: source of the numbers.
    """

    name: str
    arch: str
    processors: int
    clock: float
    bandwidth: float
    float32: int
    threads: int
    shared: int
    source: str

    def blocks(self, registers: int, shared: int, threads: int) -> int:
        """Number of resident blocks of threads of a multiprocessor.

        Args:
            registers: registers of a thread.
            shared: static shared memory of a block in bytes.
            threads: threads of a block.
        """
        # Registers come in units of 256 to a warp; a block takes 1 KiB of shared memory for itself.
        of_block = -(-32 * registers // 256) * 256 * (threads // 32)
        by_shared = self.shared // (shared + 1024)
        return min(65536 // of_block, self.threads // threads, by_shared)


CHIPS = (
    Chip("A100 SXM 80GB", "sm_80", 108, 1.410e9, 2.039e12, 64, 2048, 164 << 10,
         "multiprocessors and clock: [Ampere white paper](https://images.nvidia.com/aem-dam/en-zz/"
         "Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf); bandwidth: [A100 data "
         "sheet](https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
         "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf)"),
    Chip("H100 SXM", "sm_90", 132, 1.980e9, 3.35e12, 128, 2048, 228 << 10,
         "multiprocessors, bandwidth and the clock outside tensor cores: [Hopper white paper]"
         "(https://resources.nvidia.com/en-us-hopper-architecture/nvidia-h100-tensor-c), table 3"),
    Chip("H200 SXM", "sm_90", 132, 1.980e9, 4.8e12, 128, 2048, 228 << 10,
         "bandwidth: [H200 data sheet](https://nvdam.widen.net/s/nb5zzzsjdf/"
         "hpc-datasheet-sc23-h200-datasheet-3002446), whose 67 TFLOPS in float32 are those of the "
         "H100; clock and multiprocessors are taken from it"),
    Chip("L40S", "sm_89", 142, 2.520e9, 0.864e12, 128, 1536, 100 << 10,
         "[L40S data sheet](https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413): 18,176 "
         "cores of 128 a multiprocessor; the clock is that of its 91.6 TFLOPS in float32"),
    Chip("RTX 4090", "sm_89", 128, 2.520e9, 1.008e12, 128, 1536, 100 << 10,
         "[Ada white paper](https://images.nvidia.com/aem-dam/Solutions/geforce/ada/"
         "nvidia-ada-gpu-architecture.pdf)"),
)  # fmt: skip

SOURCES = (
    *(f"{chip.name}: {chip.source}" for chip in CHIPS),
    "operations of a multiprocessor per clock: [CUDA C++ Best Practices Guide](https://docs.nvidia."
    "com/cuda/cuda-c-best-practices-guide/#throughput-of-native-arithmetic-instructions), table of "
    "the throughput of native arithmetic instructions (until CUDA 12 in the Programming Guide)",
    "threads, registers and shared memory of a multiprocessor, and its 32 banks of 4 bytes per "
    "clock: [CUDA Programming Guide](https://docs.nvidia.com/cuda/cuda-c-programming-guide/"
    "#compute-capabilities)",
    "from memory: that four schedulers issue a warp each per clock, that registers come in units "
    "of 256, and that each block takes 1 KiB of shared memory",
)
"""Sources of all numbers. They were compared with public pages that quote these documents, not with
the documents."""
