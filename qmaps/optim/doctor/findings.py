"""Problems of an installation, with their remedies."""

from __future__ import annotations

import os
from dataclasses import dataclass

from qmaps.engines import native
from qmaps.engines.backends import Backend
from qmaps.engines.native import build
from qmaps.optim.doctor.machine import Processor

PROBLEM, NOTE = "problem", "note"


@dataclass(frozen=True)
class Finding:
    """Something about an installation that its user should know.

    Attributes:
        level: "problem" if something is wrong, "note" if it may be meant.
        message: what it is, and what it leads to.
        repair: what to do about it.
        command: what to run for that, or ``""``.
    """

    level: str
    message: str
    repair: str
    command: str = ""


def findings(backends: list[Backend], processor: Processor) -> list[Finding]:
    """Everything there is to say about the engines and threads, problems first.

    Args:
        backends: every engine, as `qmaps.backends` returns them.
        processor: the processor.
    """
    found = [*_native(), *_threads(processor), *_environment(processor), *_cuda(backends)]
    return sorted(found, key=lambda each: each.level != PROBLEM)


def _native() -> list[Finding]:
    """The extension is missing, older than its sources, or without threads."""
    if native.core is None:
        return [
            Finding(
                PROBLEM,
                "The native engine is missing, so CPU tensors run on plain PyTorch: with the same "
                f"results, but {build.SLOWER}. Reason: {native.reason.rpartition(';')[0]}.",
                "Install a C++20 compiler and run:",
                build.command(),
            )
        ]
    found = []
    if (source := build.newer_source()) is not None:
        message = f"{source.as_posix()} was changed after the native engine was built."
        found.append(Finding(PROBLEM, message, "Build it again:", build.command()))
    return found


def _threads(processor: Processor) -> list[Finding]:
    """The number of threads does not fit the cores."""
    threads, cores = processor.threads, processor.cores
    given = os.environ.get("OMP_NUM_THREADS")
    why = f" (OMP_NUM_THREADS={given})" if given else ""
    if threads > cores:
        message = f"{threads} threads share {_cores(cores)}{why}; they wait for each other."
        return [Finding(PROBLEM, message, f"Set OMP_NUM_THREADS={cores}.")]
    # torch leaves out the second thread of each core, where a core has two.
    if threads < (cores if given else cores // 2):
        message = f"{_threads_of(threads)} used, on {_cores(cores)}{why}."
        repair = f"Set OMP_NUM_THREADS={cores}, unless other processes need the other cores."
        return [Finding(NOTE, message, repair)]
    return []


def _environment(processor: Processor) -> list[Finding]:
    """Variables that choose a slower engine than the best."""
    found = []
    if (chosen := os.environ.get("QMAPS_BACKEND")) == "reference":
        message = f"QMAPS_BACKEND={chosen} turns off the native and CUDA engines."
        found.append(Finding(NOTE, message, "Unset QMAPS_BACKEND for the fastest engine."))
    isa, best = processor.instructions, native.isas()[:1]
    if isa is not None and best != [isa]:
        message = f"QMAPS_ISA={isa} keeps the native engine from using {best[0]}."
        found.append(Finding(NOTE, message, "Unset QMAPS_ISA for the fastest instruction set."))
    return found


def _cuda(backends: list[Backend]) -> list[Finding]:
    """CUDA tensors cannot be used, or run on the reference."""
    cuda = next(each for each in backends if each.name == "cuda")
    if cuda.available:
        return []
    return [
        Finding(
            NOTE,
            f"There is no CUDA engine: {cuda.reason}.",
            "Nothing to do without an NVIDIA GPU. With one, install a CUDA build of torch, and "
            "qmaps[cuda] (qmaps[cuda12] for drivers of CUDA 12).",
        )
    ]


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"


def _threads_of(count: int) -> str:
    return "1 thread is" if count == 1 else f"{count} threads are"
