"""The benchmark of steps, of every rule and with bfloat16 parameters, with small models."""

from __future__ import annotations

import pytest
import torch

from benchmarks import steps

pytestmark = pytest.mark.slow


def test_every_optimizer_has_its_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        assert steps.main(["--rounds", "2", "--scale", "0.001"]) == 0
    finally:
        torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    for group, (_, makers) in steps.GROUPS.items():
        first = next(iter(makers))
        assert f"\n{group} (a step of {first}: " in printed
        assert f"| `{first}` | 1.00 | 1.00 to 1.00 | 1.00 |" in printed
        assert all(f"| `{name}` | " in printed for name in makers)


def test_ratios_are_to_the_first() -> None:
    rows = steps.lines({"group": {("a",): [1.0, 2.0, 1.0], ("b",): [2.0, 6.0, 3.0]}})
    assert rows[0] == "group (a step of a: 1000.0 ms)"
    assert "| `b` | 3.00 | 2.50 to 3.00 | 2.00 |" in rows
