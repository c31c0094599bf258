"""Steps under DeepSpeed's ZeRO-Offload: bad input; the run itself needs a compiler and minutes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from benchmarks import offload

pytestmark = pytest.mark.slow


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        offload.main(["--rounds", "0"])
    assert "'0' must be a whole number of at least 1" in capsys.readouterr().err
    if importlib.util.find_spec("deepspeed") is None:
        assert offload.main(["--out", str(tmp_path)]) == 2
        message = 'error: deepspeed is not installed (pip install "torch-qmaps[deepspeed]")\n'
        assert capsys.readouterr().err == message


def test_the_page_has_a_row_for_each_optimizer() -> None:
    row = {"ratio": 1.0, "q1": 0.9, "q3": 1.1, "process_mib": 7.4, "state_nbytes": 2**20}
    row |= {"loss": 0.5, "resumed": 0.0}
    text = offload.page(dict.fromkeys(offload.OPTIMIZERS, row), 64, 3)
    assert "| AdamW8bit | 1.00 (0.90 to 1.10) | 7 | 1.0 | 0.5000 | 0 |" in text
    assert text.count("| 0 |") == len(offload.OPTIMIZERS)
