"""The kernels of ``src`` with their files, and the update rules as their template arguments."""

from __future__ import annotations

from qmaps.cuda.compiler import Entry
from qmaps.engines.rules import Factoring, rules
from qmaps.errors import BackendError, BadValueError

FILES = {
    "prologue.cuh": ("begin_step", "write_words"),
    "measure.cuh": ("measure",),
    "quantiles.cuh": ("find_quantiles", "add_rows"),
    "quantize.cuh": ("scan", "find_maxima", "encode", "decode"),
    "selection.cuh": ("count_first_digit", "count_next_digit", "decide_digit"),
    "factored.cuh": ("factored_sums", "finish_factored"),
    "step.cuh": ("step", "step_maxima", "step_norms", "finish_norms", "check_gradients"),
    "step_scales.cuh": (
        *("read_step_grids", "find_step_ends", "new_step_grids"),
        *("round_step_scales", "commit_step_scales"),
    ),
    "sums.cuh": ("add_parts",),
    "tensor_scales.cuh": (
        *("read_tensor_grids", "find_tensor_ends", "new_tensor_grids"),
        *("round_tensor_scales", "commit_tensor_scales"),
    ),
}
"""Names of kernels by file; a test compares them with the files."""

RULES = {key: rule.type for key, rule in rules().items()}
"""C++ types by the optimizers' name of a rule and its states."""

PRODUCTS = frozenset(rule.type for rule in rules().values() if rule.factoring is Factoring.PRODUCT)
"""C++ types of rules with statistics of rows and columns."""

_FILE_OF = {name: file for file, names in FILES.items() for name in names}


def kernel(name: str, *arguments: str | int) -> Entry:
    """A kernel to be launched.

    Raises:
        BackendError: there is no kernel of this name.

    >>> kernel("find_maxima", "float")
    Entry(file='quantize.cuh', name='find_maxima<float>')
    """
    if name not in _FILE_OF:
        raise BackendError(
            f"name={name!r} is not a CUDA kernel; qmaps/cuda/kernels.py lists all kernels"
        )
    template = f"<{', '.join(map(str, arguments))}>" if arguments else ""
    return Entry(_FILE_OF[name], name + template)


def rule(name: str, states: str) -> str:
    """The C++ type of a rule.

    Raises:
        BadValueError: the engine does not know the rule with these states.
    """
    if (name, states) not in RULES:
        raise BadValueError(f"rule {name!r} with states {states!r} is not known to the CUDA engine")
    return RULES[name, states]
