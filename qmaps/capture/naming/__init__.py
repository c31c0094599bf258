"""Names for the parameters of a checkpoint that only numbers them."""

from qmaps.capture.naming.fit import Group, Unnamed, fitted, parameter_shape
from qmaps.capture.naming.known import Known
from qmaps.capture.naming.places import by_place, names_in_text

__all__ = [
    "Group",
    "Known",
    "Unnamed",
    "by_place",
    "fitted",
    "names_in_text",
    "parameter_shape",
]
