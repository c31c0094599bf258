"""The maps of the 8-bit paper by its names."""

from __future__ import annotations

NAMES = {
    "linear": "linear0",
    "quantile": "quantile",
    "inverse dynamic": "inverse",
    "dynamic": "DE",
}
"""In the order of table 6; its linear map holds zero."""


def both(name: str, norm: str = "tensor") -> str:
    """The pair with both moments under this map, at 8 bits."""
    return f"{norm}/{NAMES[name]}@8s + {norm}/{NAMES[name]}@8u"


def first_only(name: str) -> str:
    """The pair with the second moment in 32 bits."""
    return f"tensor/{NAMES[name]}@8s + 32-bit"
