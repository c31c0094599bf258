"""Links for messages, and the cost of coding them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from qmaps.algebra.quantizer import Quantizer, quantizer
from qmaps.errors import BadValueError
from reproduction.speedup._checks import count, known, number


@dataclass(frozen=True)
class Link:
    """A connection between two devices.

    Attributes:
        gb_per_s: bandwidth, 1e9 bytes a second.
        latency_ms: pairs of a message's size (kB of 1000 bytes) and its latency (ms), sizes
            ascending. Between them latency is linear in the size; beyond them it is constant.
    """

    gb_per_s: float
    latency_ms: tuple[tuple[float, float], ...] = ((0.0, 0.0),)

    def __post_init__(self) -> None:
        number("gb_per_s", self.gb_per_s, above=True)
        pairs = tuple((number("size", s), number("latency", ms)) for s, ms in self.latency_ms)
        sizes = [size for size, _ in pairs]
        if not pairs or sizes != sorted(set(sizes)):
            raise BadValueError(
                f"latency_ms={self.latency_ms!r} must be pairs of size and latency with ascending "
                "sizes"
            )
        object.__setattr__(self, "latency_ms", pairs)

    def ms(self, nbytes: float) -> float:
        """Milliseconds for one message of `nbytes` bytes.

        >>> Link(6, ((18, 0.5), (144, 1.0))).ms(144_000)
        1.024
        """
        sizes, latencies = zip(*self.latency_ms, strict=True)
        latency = float(np.interp(nbytes / 1e3, sizes, latencies))
        return latency + nbytes / self.gb_per_s / 1e6


@dataclass(frozen=True)
class Hardware:
    """Nodes with devices in them.

    Attributes:
        name: for tables.
        nodes: how many computers.
        gpus_per_node: devices in each.
        network: between nodes.
        local: between devices of a node.
        compress_ns: nanoseconds to quantize one number, by quantizer spec; 0 if not named.
        decompress_ns: nanoseconds to decode one.
    """

    name: str
    nodes: int
    gpus_per_node: int
    network: Link
    local: Link
    compress_ns: Mapping[str, float] = field(default_factory=dict)
    decompress_ns: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count("nodes", self.nodes)
        count("gpus_per_node", self.gpus_per_node)
        for name in ("compress_ns", "decompress_ns"):
            value = getattr(self, name)
            checked = {quantizer(k).spec: number(f"{name}[{k!r}]", v) for k, v in value.items()}
            object.__setattr__(self, name, checked)

    @property
    def gpus(self) -> int:
        """Devices in all."""
        return self.nodes * self.gpus_per_node

    def message_ms(self, numbers: int, q: Quantizer | None) -> float:
        """Milliseconds until all have the `numbers` activations of one node, and it has theirs.

        Over the network a node sends its part to each other one, and inside it every device's part
        goes to every device, one after the other as on a shared bus: `gpus_per_node` squared local
        messages. One node alone needs `gpus_per_node` of them, each with one device's part. Own
        numbers are quantized once, and those of all others decoded.

        This returns the paper's single-pass times (its Table 6) from its message sizes and
        latencies (its Table 5) to 1.5 %, one to 3 %; its text leaves the number of local messages
        open.

        Args:
            numbers: activations to send from one node (or from the device of one node).
            q: quantizer of the messages; None for float32.
        """
        nbytes = 4 * numbers if q is None else q.nbytes((numbers,))
        peers = (self.nodes if self.nodes > 1 else self.gpus_per_node) - 1
        if not peers:
            return 0.0
        messages = self.gpus_per_node
        if self.nodes > 1:
            messages = self.gpus_per_node**2 if self.gpus_per_node > 1 else 0
        ms = messages * self.local.ms(nbytes)
        ms += (self.nodes - 1) * self.network.ms(nbytes)
        if q is not None:
            ns = self.compress_ns.get(q.spec, 0.0) + peers * self.decompress_ns.get(q.spec, 0.0)
            ms += numbers * ns / 1e6
        return ms

    def to_json(self) -> dict[str, Any]:
        """As plain values, for `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> Hardware:
        """Read the output of `to_json`, or a user's file.

        Raises:
            BadValueError, BadTypeError: a field is missing, unknown, or out of its range.
        """
        values = known(cls, data, "hardware")
        for name in ("name", "nodes", "gpus_per_node", "network", "local"):
            if name not in values:
                raise BadValueError(f"hardware lacks {name!r}")
        for name in ("network", "local"):
            link = known(Link, values[name], name)
            if "gb_per_s" not in link:
                raise BadValueError(f"{name} lacks 'gb_per_s'")
            pairs = link.get("latency_ms", ((0.0, 0.0),))
            if not isinstance(pairs, list | tuple) or any(
                not isinstance(pair, list | tuple) or len(pair) != 2 for pair in pairs
            ):
                raise BadValueError(f"latency_ms={pairs!r} must be pairs of size and latency")
            values[name] = Link(link["gb_per_s"], tuple((size, ms) for size, ms in pairs))
        return cls(**values)
