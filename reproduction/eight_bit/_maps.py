"""The maps of the 8-bit paper by the names that it gives them."""

from __future__ import annotations

NAMES = {
    "linear": "linear0",
    "quantile": "quantile",
    "inverse dynamic": "inverse",
    "dynamic": "DE",
}
"""In the order of table 6; its linear map holds zero."""


def both(name: str, norm: str = "tensor") -> str:
    """The pair that quantizes both moments with that map, at 8 bits."""
    return f"{norm}/{NAMES[name]}@8s + {norm}/{NAMES[name]}@8u"


def first_only(name: str) -> str:
    """The pair that leaves the second moment in 32 bits."""
    return f"tensor/{NAMES[name]}@8s + 32-bit"
