"""Update rules as the engines have them: read from the headers compiled as C++ and CUDA.

The headers in ``kernels/rules`` state the order of a rule's scalars; everything here binds by name.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from qmaps.engines.kernels.declarations import ENUMERATIONS, Factoring, KernelRule, read_rules
from qmaps.errors import BackendError, BadValueError

T = TypeVar("T")

__all__ = ["Factoring", "KernelRule", "check_build", "ordered", "rules", "scalar_names"]


@functools.cache
def rules() -> Mapping[tuple[str, str], KernelRule]:
    """Every rule by its name and states, such as ``("adamw", "exp_avg exp_avg_sq")``.

    Raises:
        BackendError: a header of the installation cannot be read.
    """
    try:
        return {(rule.name, " ".join(rule.states)): rule for rule in read_rules()}
    except (OSError, ValueError) as error:
        raise BackendError(f"the update rules of the engines cannot be read: {error}") from error


@functools.cache
def scalar_names(rule: str) -> tuple[str, ...]:
    """Names of a rule's step scalars, in the order of kernels' arguments.

    Raises:
        BadValueError: there is no rule of this name.
    """
    for (name, _), kernel_rule in rules().items():
        if name == rule:
            return tuple(map(sys.intern, kernel_rule.scalars))  # quickly compared
    raise BadValueError(f"rule {rule!r} is not known to the engines")


def ordered(rule: str, scalars: Mapping[str, T]) -> list[T]:
    """Values of step scalars in the order of kernels' arguments; a BadValueError if some differ.

    >>> ordered("adagrad", {"sign": 1.0, "step_size": 0.1, "eps": 1e-10, "weight_decay": 0.0})
    [0.0, 1e-10, 0.1, 1.0]
    """
    names = scalar_names(rule)
    if tuple(scalars) == names:  # the order of optimizers in qmaps: no look-ups in every step
        return list(scalars.values())
    if len(scalars) == len(names):
        try:
            return [scalars[name] for name in names]
        except KeyError:
            pass
    raise BadValueError(f"scalars of rule {rule!r} must be {', '.join(names)}")


def check_build(compiled: Any) -> None:
    """Compare the rules and enumerations of the native module with those of this installation.

    Raises:
        BackendError: they differ.
    """
    declared = [(kind.__name__, e.name, e.value) for kind in ENUMERATIONS for e in kind]
    try:
        built = [
            KernelRule(
                name, tuple(states.split()), tuple(map(str.strip, scalars.split(","))), type_,
                norms, Factoring(factoring),
            )
            for name, states, scalars, type_, norms, factoring in compiled.rules()
        ]  # fmt: skip
        same = built == list(rules().values()) and list(compiled.enumerators()) == declared
    except (AttributeError, TypeError, ValueError):
        same = False
    if not same:
        raise BackendError(
            "the native engine was built from other sources; build it again with pip install, or "
            "with pip install --editable in a source tree"
        )
