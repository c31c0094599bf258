from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.arm import __main__ as arm
from benchmarks.arm import quantizers


def test_quantizers_are_written_as_bits(tmp_path: Path) -> None:
    quantizers.write(tmp_path / "q.txt", ("B32/linear@2s", "B64xbf16/geometric@3u+qsr"))
    signed, unsigned = (tmp_path / "q.txt").read_text().splitlines()
    name, bits, block, kind, rounding, bend, count, *numbers = signed.split()
    assert [name, bits, block, kind, rounding, bend] == ["B32/linear@2s", "2", "32", "0", "0", "0"]
    assert (count, len(numbers)) == ("4", 4 + 3 + 3)
    assert numbers[3] == str(0x3F800000)  # the last value, 1
    assert unsigned.split()[2:5] == ["64", "2", "2"]


def test_presets_have_a_signed_and_an_unsigned_quantizer() -> None:
    assert {name: [spec[-1] for spec in pair] for name, pair in arm.presets().items()}.keys() == {
        "8bit",
        "4bit",
    }
    for signed, unsigned in arm.presets().values():
        assert "s" in signed.rpartition("@")[2]
        assert "u" in unsigned.rpartition("@")[2]


@pytest.mark.parametrize(
    ("function", "part"),
    [("5applyINS0_5AdamWEEEvPf", "rule"), ("6unpackEPKhillPh", "decoding"),
     ("14encode_dividedERKNS_", "encoding"), ("10step_rangeERKNS_", "the rest")],
)  # fmt: skip
def test_functions_belong_to_parts_of_a_step(function: str, part: str) -> None:
    assert arm.part_of(arm.KERNELS + function) == part


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("qemu-aarch64-static") and find_spec("ziglang")),
    reason="needs qemu-aarch64-static and ziglang",
)
def test_neon_makes_the_bits_of_portable_code() -> None:
    assert arm.main(["--check"]) == 0
