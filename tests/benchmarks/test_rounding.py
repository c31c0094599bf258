"""The benchmark of stochastic rounding and of scales, with small models."""

from __future__ import annotations

import pytest
import torch

from benchmarks import rounding

pytestmark = pytest.mark.slow


def test_every_pair_has_its_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        assert rounding.main(["--rounds", "2", "--scale", "0.001"]) == 0
    finally:
        torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    for group, pairs in rounding.GROUPS.items():
        assert f"\n{group} (a plain step: " in printed
        first, second = pairs[0]
        assert f"| `{first}` | `{second}` | 1.00 | 1.00 to 1.00 | 1.00 |" in printed
        assert all(f"| `{first}` | `{second}` | " in printed for first, second in pairs)


def test_all_states_are_quantized() -> None:
    params = rounding.parameters([(128, 128)])
    for pairs in rounding.GROUPS.values():
        for pair in pairs:
            memory = rounding.stepper(params, pair).__self__.memory()
            assert tuple(str(row.quantizer) for row in memory.rows) == pair
