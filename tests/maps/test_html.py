"""What notebooks show: small, escaped, for objects in any state."""

from __future__ import annotations

import ctypes
import re
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import qmaps
from qmaps.maps import REGISTRY


class Texts(HTMLParser):
    """The texts of the cells, and the tags that are not closed."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.open: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("div", "b", "table", "tr", "th", "td", "br")
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.cells.append(data)


def texts(shown: object) -> list[str]:
    source = shown._repr_html_()
    # It inherits the notebook's colours, dark or light, and loads nothing.
    assert not re.search(r"color:(?!inherit)|background|src=|href=|<script|<style", source)
    found = Texts(source)
    assert found.open == []
    return found.cells


def test_quantizers_maps_and_tensors() -> None:
    q = qmaps.quantizer("B128/DE@4s+sr")
    assert texts(q) == [
        "Quantizer", "spec", "B128/DE@4s+sr", "normalizer", "B128", "map", "DE@4s", "rounding",
        "stochastic", "bits per element", "4.25",
    ]  # fmt: skip
    mine = qmaps.Codebook([-1, 0.123456, 1], label="mine")
    assert texts(mine) == [
        "Codebook", "spec", "mine@2s", "width", "2 bits, signed", "values", "-1, 0.1235, 1",
    ]  # fmt: skip
    assert texts(qmaps.maps.Quantile(4))[-1] == "fitted to data"
    assert texts(qmaps.maps.DynamicExponent(8))[-1].endswith("0.9789, 0.993, 1 (256 values)")
    t = qmaps.quantizer("B128/DE@4s").quantize(torch.ones(30, 20))
    assert texts(t) == [
        "QuantizedTensor", "quantizer", "B128/DE@4s", "shape", "30 x 20", "bytes", "320",
        "bits per element", "4.267", "device", "cpu",
    ]  # fmt: skip
    for cls in REGISTRY.values():
        assert len(texts(cls.near(8))) == 7


def test_memory() -> None:
    odd = "<script>alert('&')</script>"
    net = nn.Linear(100, 100)
    memory = qmaps.optim.AdamW8bit([(odd, net.weight), ("bias", net.bias)]).memory()
    cells = texts(memory)
    # The words of the printed table, and its totals.
    assert " ".join(cells[1:]).split() == str(memory).split()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_odd_states_are_shown(device: str) -> None:
    q = qmaps.quantizer("B64/DE@8s")
    for shape in ((0,), (), (3, 0)):
        t = q.quantize(torch.zeros(shape)).to(device)
        assert t.device.type in texts(t)
    parameter = nn.Parameter(torch.ones(70, 70, device=device))
    texts(qmaps.optim.AdamW8bit([parameter]).memory())
    texts(qmaps.optim.AdamW8bit([nn.Parameter(torch.ones(0, device=device))]).memory())
    freed = q.quantize(torch.ones(70))
    freed.packed.untyped_storage().resize_(0)
    assert "B64/DE@8s" in texts(freed)
    object.__setattr__(freed, "packed", ctypes.c_int)
    assert texts(freed)[-1] == "unknown"
