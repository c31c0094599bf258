"""Optimizers with quantized states.

Every class with `states` in a file of this package is exported. The imports below are for type
checkers; classes without an import are exported as well.
"""

from qmaps.algebra import plugins
from qmaps.optim.adafactor import Adafactor, Adafactor8bit
from qmaps.optim.adagrad import Adagrad, Adagrad4bit, Adagrad8bit
from qmaps.optim.adam import Adam, Adam4bit, Adam8bit
from qmaps.optim.adamw import AdamW, AdamW4bit, AdamW8bit
from qmaps.optim.adamw_factor import AdamW4bitFactor, AdamW8bitFactor, AdamWFactor
from qmaps.optim.adamw_schedule_free import (
    AdamWScheduleFree,
    AdamWScheduleFree4bit,
    AdamWScheduleFree8bit,
)
from qmaps.optim.adan import Adan, Adan4bit, Adan8bit
from qmaps.optim.ademamix import AdEMAMix, AdEMAMix4bit, AdEMAMix8bit
from qmaps.optim.base import FixedWidth, QuantizedOptimizer
from qmaps.optim.choice import keep_in_32_bits
from qmaps.optim.choice_file import Choice
from qmaps.optim.groups import muon_groups, param_groups
from qmaps.optim.lamb import LAMB, LAMB4bit, LAMB8bit
from qmaps.optim.lars import LARS, LARS4bit, LARS8bit
from qmaps.optim.lion import Lion, Lion4bit, Lion8bit
from qmaps.optim.muon import Muon, Muon4bit, Muon8bit
from qmaps.optim.nadam import NAdam, NAdam4bit, NAdam8bit
from qmaps.optim.offload import CPUOffloadOptimizer
from qmaps.optim.presets import PRESETS
from qmaps.optim.prodigy import Prodigy, Prodigy4bit, Prodigy8bit
from qmaps.optim.release import release_gradients
from qmaps.optim.rmsprop import RMSprop, RMSprop4bit, RMSprop8bit
from qmaps.optim.rule import State
from qmaps.optim.sgd import SGD, SGD4bit, SGD8bit
from qmaps.optim.sm3 import SM3
from qmaps.optim.soap import SOAP, SOAP4bit, SOAP8bit
from qmaps.registry import modules

__all__ = [
    "LAMB", "LARS", "PRESETS", "SGD", "SM3", "SOAP", "AdEMAMix", "AdEMAMix4bit", "AdEMAMix8bit",
    "Adafactor", "Adafactor8bit", "Adagrad", "Adagrad4bit", "Adagrad8bit", "Adam", "Adam4bit",
    "Adam8bit", "AdamW", "AdamW4bit", "AdamW4bitFactor", "AdamW8bit", "AdamW8bitFactor",
    "AdamWFactor", "AdamWScheduleFree", "AdamWScheduleFree4bit", "AdamWScheduleFree8bit",
    "Adan", "Adan4bit", "Adan8bit", "CPUOffloadOptimizer", "Choice", "LAMB4bit",
    "LAMB8bit", "LARS4bit", "LARS8bit", "Lion", "Lion4bit", "Lion8bit", "Muon", "Muon4bit",
    "Muon8bit", "NAdam", "NAdam4bit", "NAdam8bit", "Prodigy", "Prodigy4bit", "Prodigy8bit",
    "QuantizedOptimizer", "RMSprop",
    "RMSprop4bit", "RMSprop8bit", "SGD4bit", "SGD8bit", "SOAP4bit", "SOAP8bit", "State",
    "keep_in_32_bits", "muon_groups", "param_groups",
    "release_gradients",
]  # fmt: skip

for _module in modules(__name__, list(__path__)):
    for _name, _found in vars(_module).items():
        if (
            isinstance(_found, type)
            and getattr(_found, "state_names", None)
            and _name[0] != "_"
            and _name not in __all__
        ):
            globals()[_name] = _found
            __all__ += [_name]


def rules() -> dict[str, type[QuantizedOptimizer]]:
    """The optimizers that accept `state_quantizers`, by the names of their classes."""
    classes = {name: globals()[name] for name in __all__}
    return {
        name: cls
        for name, cls in classes.items()
        if getattr(cls, "state_names", ()) and not issubclass(cls, FixedWidth)
    }


def __getattr__(name: str) -> type:
    """The optimizer of that name of another package (`qmaps.algebra.plugins`)."""
    if (optimizer := plugins.optimizer(name)) is not None:
        return optimizer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
