"""Update rules as template arguments of CUDA kernels; see `qmaps.engines.rules`."""

from __future__ import annotations

from qmaps.engines.rules import Factoring, rules
from qmaps.errors import BadValueError

RULES = {key: rule.type for key, rule in rules().items()}
"""C++ types by the optimizers' name of a rule and its states."""

PRODUCTS = frozenset(rule.type for rule in rules().values() if rule.factoring is Factoring.PRODUCT)
"""C++ types of rules with statistics of rows and columns."""


def rule(name: str, states: str) -> str:
    """The C++ type of a rule.

    Args:
        name: the name of the rule, such as ``"adamw"``.
        states: its states, such as ``"exp_avg exp_avg_sq"``.

    Raises:
        BadValueError: the engine does not know the rule with these states.
    """
    if (name, states) not in RULES:
        raise BadValueError(f"rule {name!r} with states {states!r} is not known to the CUDA engine")
    return RULES[name, states]
