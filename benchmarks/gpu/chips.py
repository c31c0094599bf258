"""GPUs that the model of steps knows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    """Numbers of one GPU.

    Attributes:
        name: of the product.
        arch: the architecture that its kernels are compiled for.
        processors: number of multiprocessors.
        clock: boost clock in Hz.
        bandwidth: of the memory, in bytes per second.
        float32: float32 operations of a multiprocessor per clock.
        threads: most resident threads of a multiprocessor.
        shared: shared memory of a multiprocessor in bytes.
        source: where the numbers come from.
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
        """Number of blocks of threads that a multiprocessor holds at once.

        Args:
            registers: of a thread.
            shared: static shared memory of a block in bytes.
            threads: of a block.
        """
        # Registers come in units of 256 to a warp; a block takes 1 KiB of shared memory for itself.
        of_block = -(-32 * registers // 256) * 256 * (threads // 32)
        by_shared = self.shared // (shared + 1024)
        return min(65536 // of_block, self.threads // threads, by_shared)


CHIPS = (
    Chip("A100 SXM 80GB", "sm_80", 108, 1.410e9, 2.039e12, 64, 2048, 164 << 10,
         "NVIDIA A100 Tensor Core GPU Architecture (white paper), A100 80GB data sheet"),
    Chip("H100 SXM", "sm_90", 132, 1.980e9, 3.35e12, 128, 2048, 228 << 10,
         "NVIDIA H100 Tensor Core GPU Architecture (white paper), H100 data sheet; the clock is "
         "that of its 66.9 TFLOPS in float32"),
    Chip("L40S", "sm_89", 142, 2.520e9, 0.864e12, 128, 1536, 100 << 10,
         "NVIDIA L40S data sheet; the clock is that of its 91.6 TFLOPS in float32"),
    Chip("RTX 4090", "sm_89", 128, 2.520e9, 1.008e12, 128, 1536, 100 << 10,
         "NVIDIA Ada GPU Architecture (white paper)"),
)  # fmt: skip
"""Rates other than float32 and float64 are those of the CUDA C++ Programming Guide, "Arithmetic
Instructions", which all four share: `sass.RATES`."""
