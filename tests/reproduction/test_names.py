"""Quantizers by the names of the 4-bit paper."""

from __future__ import annotations

import pandas as pd
import pytest

from reproduction.four_bit._names import printed, renamed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("rank1/linear@4u", "Rank-1/Linear"),
        ("B128/DE-0@4u", "B128/DE-0"),
        ("DE@4s", "DE"),
        ("linear@4u", "Linear"),
        ("32-bit", "32-bit"),
    ],
)
def test_names(spec: str, name: str) -> None:
    assert printed(spec) == name


def test_other_columns_are_kept() -> None:
    frame = pd.DataFrame({"quantizer": ["B128/DE@4s"], "tensor": ["a@b"]})
    assert renamed(frame, "quantizer").to_dict("records") == [
        {"quantizer": "B128/DE", "tensor": "a@b"}
    ]
