"""Workloads for the comparison of quantizers, each at the best learning rate of 32 bits.

If the rate is too small for the model, anything that makes steps larger lowers the loss, even an
error. At the best rate, an error of the updates raises it, whatever its sign. reports/judges.md
shows the sweep of the rates, and the detectable difference of each workload.
"""

from __future__ import annotations

from qmaps.errors import BadValueError, nearest
from qmaps.lab.workloads import Workload
from qmaps.lab.workloads.digits import Digits
from qmaps.lab.workloads.stdlib_lm import StdlibLM, StdlibLMTiny
from reproduction.workloads.docstring_lm import DocstringLM
from reproduction.workloads.minilm import MiniLM

TASKS: dict[str, Workload] = {
    "digits": Digits(steps=400, lr=16e-3, warmup_steps=40),
    "lm-tiny": StdlibLMTiny(steps=300, lr=3e-3, warmup_steps=100),
    "stdlib-lm": StdlibLM(steps=250, lr=1e-3, warmup_steps=25),
    "docstring-lm": DocstringLM(steps=200, lr=3e-3, warmup_steps=20),
    "minilm": MiniLM(steps=200, lr=5e-5, warmup_steps=20, longest=20),
}
"""The workloads by name; the last two begin from trained weights, the others from random ones.

Their rates are the best of a sweep (reports/judges.md). `docstring-lm` is the one whose differences
are clear.
"""


def task(name: str) -> Workload:
    """The workload of this name.

    Raises:
        BadValueError: the name is unknown.
    """
    if name not in TASKS:
        raise BadValueError(
            f"task={name!r} is unknown; allowed are {', '.join(TASKS)}{nearest(name, TASKS)}"
        )
    return TASKS[name]
