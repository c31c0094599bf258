"""The model of a step's machine code: the usual path, the pipes and the time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.gpu import sass
from benchmarks.gpu.chips import CHIPS
from benchmarks.gpu.sass import Kernel, blocks, seconds, usual_path
from qmaps.cuda import compiler

pytestmark = pytest.mark.slow

LISTING = """
.text.step:
	//## File "/src/step.cuh", line 1
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
	//## File "/src/memory.cuh", line 7 inlined at "/src/step.cuh", line 2
	//## File "/src/step.cuh", line 2
        /*0010*/                   LDG.E.128 R4, [R2.64] ;
        /*0020*/                   LDS R3, [R1] ;
        /*0030*/              @!P0 BRA P3, `(.L_x_2) ;
	//## File "/src/memory.cuh", line 8 inlined at "/src/step.cuh", line 2
	//## File "/src/step.cuh", line 2
        /*0040*/                   LDG.E R4, [R2.64] ;
.L_x_2:
	//## File "/src/step.cuh", line 3
        /*0050*/                   MUFU.RCP R5, R4 ;
        /*0060*/                   FFMA R5, R4, R5, 1 ;
        /*0070*/               @P1 BRA `(.L_x_3) ;
        /*0080*/                   CALL.REL.NOINC `($__internal_0_$__slowpath) ;
.L_x_3:
        /*0090*/                   IADD3 R1, R1, 0x1, RZ ;
        /*00a0*/               @P2 CALL.REL.NOINC `(.L_x_4) ;
        /*00b0*/                   BRA `(.L_x_1) ;
.L_x_4:
        /*00c0*/                   EXIT ;
"""


def test_the_usual_path_leaves_out_blocks_that_did_not_run() -> None:
    ran = {("step.cuh", 1): 1, ("step.cuh", 2): 8, ("step.cuh", 3): 8}
    ran |= {("memory.cuh", 7): 8, ("memory.cuh", 8): 0}
    path = usual_path(blocks(LISTING, "step"), ran)
    names = ["LDG.E.128", "LDS", "BRA", "MUFU.RCP", "FFMA", "BRA", "IADD3", "CALL.REL.NOINC", "BRA"]
    assert [block.name for block in path] == names
    kernel = Kernel(path, {("memory.cuh", 7): 2.5}, 64, 0, 13)
    expected = {"issue": 9, "lsu": 4 + 2.5, "xu": 1, "fma": 1, "alu": 1, "": 4}
    assert kernel.pipes == {pipe: count / 8 for pipe, count in expected.items()}


def test_time_is_that_of_the_busiest_unit() -> None:
    a100 = CHIPS[0]
    path = usual_path(blocks(LISTING, "step"), {("memory.cuh", 8): 0})
    needed = seconds([Kernel(path, {}, 64, 0, 13)], 16.0, a100)
    assert needed["memory"] == 16 / 2.039e12
    assert needed["xu"] == pytest.approx(1 / 8 / 16 / 108 / 1.41e9)
    assert max(needed, key=lambda unit: needed[unit]) == "memory"
    # Registers, threads and shared memory.
    assert a100.blocks(64, 0, 256) == 4
    assert a100.blocks(16, 0, 256) == 8
    assert a100.blocks(16, 40 << 10, 256) == 4


@pytest.mark.skipif(bool(compiler.missing()), reason=compiler.missing())
def test_a_step_of_8_bits_is_memory_bound_by_the_model(tmp_path: Path) -> None:
    (row,) = sass.rows([sass.case("8bit", torch.float32, tmp_path)], [CHIPS[1]])
    assert (row["case"], row["bound"], row["memory_share"]) == ("8bit, float32", "memory", "100%")
    assert float(row["executed"]) <= 110  # random numbers of the second moment
