"""Quantizers of optimizer states by name, whatever the optimizer."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from qmaps.algebra.pair import Pair
from qmaps.algebra.quantizer import Quantizer
from qmaps.errors import BadValueError, SpecError, nearest, shown
from qmaps.maps.codebook import Codebook


@dataclass(frozen=True)
class Preset:
    """Quantizers of a preset, chosen by the sign of a state alone.

    Attributes:
        signed: spec of states with negative values, None for 32 bits; ``{block}``, if it has one,
            stands for the block size.
        unsigned: the same for the other states.
        block_size: elements per scale, unless another size is asked for.
        paired: the two specs of an optimizer with as many states of one kind as of the other, if
            they differ: one kind may need bits that the other can do without.
    """

    signed: str | None
    unsigned: str | None
    block_size: int
    paired: tuple[str, str] | None = None

    def specs(
        self, states: Iterable[str], signed: Collection[str], block_size: int | None = None
    ) -> dict[str, str | None]:
        """The spec of each state; None keeps it in 32 bits."""
        size = self.block_size if block_size is None else block_size
        names = list(states)
        specs = self.signed, self.unsigned
        if self.paired and len(names) == 2 * sum(name in signed for name in names):
            specs = self.paired
        chosen = {name: specs[0] if name in signed else specs[1] for name in names}
        return {name: spec and spec.format(block=size) for name, spec in chosen.items()}


_SIGNED, _UNSIGNED = "B{block}xbf16/mu-law10:linear0", "B{block}xbf16/geometric"

# fmt: off
PRESETS: dict[str, Preset] = {
    "32bit": Preset(None, None, 1),
    "8bit": Preset("B{block}/DE-sym@8s", "B{block}/geometric@8u+qsr", 256),
    "4bit": Preset(
        f"{_SIGNED}@4s+qsr", f"{_UNSIGNED}@4u+qsr", 64,
        paired=(f"{_SIGNED}@5s+qsr", f"{_UNSIGNED}@3u+qsr"),
    ),
    "3bit": Preset(f"{_SIGNED}@4s+qsr", f"{_UNSIGNED}@2u+qsr", 64),
    "2bit": Preset("B16x8/linear0(full=true)@2s+qsr", "B64xbf16/geometric@2u+qsr", 64),
    "paper-8bit": Preset("B{block}/DE@8s", "B{block}/DE@8u", 2048),
    "paper-4bit": Preset("B{block}/DE@4s", "rank1/linear@4u", 128),
}
# fmt: on
"""Presets by name; ``paper-*`` are as published.

The others keep second moments away from zero, and round them by thresholds that are spread over
steps (``+qsr``): rounded to nearest, a second moment does not follow where its gradients get
smaller. Every map of states that can be negative holds zero: a weight without gradients does not
move. Those but ``paper-*`` hold both ends, -1 and +1: mirrored gradients train mirrored. Errors of
first moments cost more, so where each has a second moment beside it ``4bit`` gives them 5 bits and
3 to the other, and ``3bit`` 4 and 2: 4.25 and 3.25 bits per element with scales. ``2bit`` has 2.4,
and its own block sizes, whatever the block size.

Source: 8-bit optimizers, section 2; 4-bit optimizers, section 5; reports/long and
reports/two-bits.md.
"""


FORMER: dict[str, Preset] = {
    "8bit-0.3": Preset("B{block}/DE@8s", "B{block}/DE-0@8u", 256),
    "4bit-0.3": Preset("B{block}/DE@4s+sr", "B{block}/DE-0@4u", 128),
    "3bit-0.3": Preset("B{block}/DE@3s+sr", "B{block}/DE-0@3u", 128),
    "2bit-0.3": Preset("B16x8/linear0(full=true)@2s+sr", "B32x8/power3@2u", 32),
}
"""Presets of version 0.3, accepted wherever those of `PRESETS` are. Checkpoints hold specs and no
names, so a resumed run keeps the ones it began with."""


def preset(name: str, option: str = "state_quantizers") -> Preset:
    """The preset of a name, or of two specs ``"SIGNED + UNSIGNED"``.

    Args:
        name: a key of `PRESETS` or `FORMER`, or two specs with ``" + "`` between them; ``32-bit``
            stands for no quantizer.
        option: name of the option in the error message.

    Raises:
        BadValueError: there is no such preset.
        SpecError: one of two specs does not parse.

    >>> preset("B128/DE@4s + rank1/linear@4u").specs(["exp_avg", "exp_avg_sq"], {"exp_avg"})
    {'exp_avg': 'B128/DE@4s', 'exp_avg_sq': 'rank1/linear@4u'}
    """
    if found := PRESETS.get(name) or FORMER.get(name):
        return found
    if " + " in name:
        pair = Pair.parse(name)
        specs = [None if q is None else q.spec for q in (pair.first, pair.second)]
        return Preset(specs[0], specs[1], 1)
    raise BadValueError(
        f"{option}={shown(name)} is not a preset; allowed are {', '.join(PRESETS)}, 'SIGNED + "
        f"UNSIGNED' of specs, or a dict from state names to specs{nearest(name, PRESETS)}"
    )


def pair_of(
    pair: Pair | str | tuple[str | Quantizer | None, str | Quantizer | None],
    codebooks: Iterable[Codebook] = (),
) -> Pair:
    """The quantizers of Adam's moments, by a preset's name or as `Pair.parse` reads them.

    Args:
        pair: a key of `PRESETS` or `FORMER`, ``"FIRST + SECOND"``, or a tuple of two specs or
            quantizers.
        codebooks: maps of the caller's own, found in specs by their label.

    Raises:
        SpecError: there is no such preset, there are not two parts, or one does not parse.
        BadTypeError: `pair` is neither a str, a tuple nor a `Pair`.

    >>> str(pair_of("paper-4bit"))
    'B128/DE@4s + rank1/linear@4u'
    """
    if not isinstance(pair, str) or "/" in pair or " + " in pair:
        return Pair.parse(pair, codebooks)
    if pair not in PRESETS and pair not in FORMER:
        raise SpecError(
            f"pair={shown(pair)} is not a preset; allowed are {', '.join(PRESETS)}, or 'FIRST + "
            f"SECOND' of specs{nearest(pair, PRESETS)}"
        )
    specs = preset(pair).specs(("first", "second"), signed=("first",))
    return Pair.parse((specs["first"], specs["second"]))


PAIRS = {pair_of(name).spec: name for name in PRESETS if name != "32bit"}
"""Names of the presets by the pair that Adam gets from them."""
