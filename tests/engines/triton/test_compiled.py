"""Code for NVIDIA's and AMD's GPUs, compiled without a GPU: operations that affect bits."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="triton is not installed: pip install torch-qmaps[triton]",
    ),
]

CODE = """
import json, sys
from benchmarks.gpu import triton_kernels as kernels
from qmaps.engines.triton import engine, helpers

change, arch, rule, states = sys.argv[1:]
if change == "fusion":
    engine.OPTIONS["enable_fp_fusion"] = True
for name, old, new in (("divide", "tl.math.div_rn(x, y)", "x / y"),
                       ("root", "tl.math.sqrt_rn(x)", "tl.sqrt(x)")):
    if change == name:
        function = getattr(helpers, name)
        assert old in function.src
        function._unsafe_update_src(function.src.replace(old, new))
made = kernels.compiled(kernels.Case(rule, states), arch)
print(json.dumps({"faults": kernels.faults(made.asm), **made.usage}))
"""


def compiled(change: str, arch: str, rule: str = "AdamW", states: str = "8bit") -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, change, arch, rule, states],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results


@pytest.mark.parametrize("arch", ["sm_80", "gfx942"])
def test_bits_are_kept(arch: str) -> None:
    results = compiled("", arch)
    assert results["faults"] == []
    assert results["spills"] == 0


@pytest.mark.parametrize("arch", ["sm_80", "gfx942"])
def test_a_rule_without_divisions_has_no_fused_operation(arch: str) -> None:
    assert compiled("", arch, "Lion", "32bit")["faults"] == []
    assert compiled("fusion", arch, "Lion", "32bit")["faults"] == ["a fused multiply-add"]


@pytest.mark.parametrize(
    ("change", "arch", "fault"),
    [
        ("divide", "sm_80", "an approximate division"),
        ("root", "sm_80", "an approximate root"),
    ],
)
def test_other_code_is_found(change: str, arch: str, fault: str) -> None:
    assert fault in compiled(change, arch)["faults"]
