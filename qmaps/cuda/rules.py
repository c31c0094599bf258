"""Update rules and their names in ``qmaps/engines/kernels/rules``."""

from __future__ import annotations

from qmaps.errors import BadValueError

RULES = {
    ("adafactor", "sides"): "Adafactor<false, true>",
    ("adafactor", "exp_avg sides"): "Adafactor<true, true>",
    ("adagrad", "sum"): "Adagrad",
    ("adam", "exp_avg exp_avg_sq"): "Adam",
    ("adafactor", "variance"): "Adafactor<false, false>",
    ("adafactor", "exp_avg variance"): "Adafactor<true, false>",
    ("adamw", "exp_avg exp_avg_sq"): "AdamW",
    ("adamw_factor", "exp_avg sides"): "AdamWFactor",
    ("adamw_factor", "exp_avg exp_avg_sq"): "AdamWWhole",
    ("ademamix", "exp_avg exp_avg_slow exp_avg_sq"): "AdEMAMix",
    ("lamb", "exp_avg exp_avg_sq"): "Lamb",
    ("lars", ""): "Lars<false>",
    ("lars", "momentum_buffer"): "Lars<true>",
    ("lion", "exp_avg"): "Lion",
    ("rmsprop", "square_avg"): "RmsProp<false, false>",
    ("rmsprop", "square_avg momentum_buffer"): "RmsProp<true, false>",
    ("rmsprop", "square_avg grad_avg"): "RmsProp<false, true>",
    ("rmsprop", "square_avg momentum_buffer grad_avg"): "RmsProp<true, true>",
    ("sgd", ""): "Sgd<false>",
    ("sgd", "momentum_buffer"): "Sgd<true>",
    ("sm3", "sides"): "Sm3<false>",
    ("sm3", "momentum_buffer sides"): "Sm3<true>",
}
"""C++ types by the optimizers' name of a rule and its states; a test checks them."""


NORMS = frozenset({"adafactor", "lamb", "lars"})
"""Names of rules that take norms of whole tensors."""

PRODUCTS = frozenset({"AdamWFactor", "Adafactor<false, true>", "Adafactor<true, true>"})
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
