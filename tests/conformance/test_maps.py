"""Checks for every map: `qmaps.testing.maps`, for each class at all of its widths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from qmaps import maps
from qmaps.maps.base import Map
from qmaps.testing import check_map, forms
from qmaps.testing.maps import CHECKS
from tests.helpers import about, users_codebooks

SUBJECTS = {name: forms(maps.REGISTRY[name]) for name in maps.names()} | {
    map_.label: [map_] for map_ in users_codebooks()
}


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_maps(check: Callable[..., None], name: str, device: torch.device) -> None:
    for map_ in SUBJECTS[name]:
        with about(map_):
            check(map_, device)


@dataclass(frozen=True)
class Wrong(Map):
    """A map with a flaw."""

    spec_name: ClassVar[str] = "wrong"

    def values(self) -> Tensor:
        return torch.linspace(1, -1, 2**self.bits, dtype=torch.float64)  # descending


def test_a_wrong_map_fails() -> None:
    with pytest.raises(AssertionError) as caught:
        check_map(Wrong)
    assert "of wrong@2s" in caught.value.__notes__[0]
    with pytest.raises(TypeError, match="map_ must be a map or a class of maps"):
        check_map(3)
