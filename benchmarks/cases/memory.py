"""Memory of states, and of a step, each method in a process of its own."""

from __future__ import annotations

from benchmarks.memory import MemoryCase

CASES = (MemoryCase("memory of AdamW 8-bit, GPT-2 small"),)
