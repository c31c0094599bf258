"""Experts of DeepSpeed's mixtures: their names, and which ranks hold them.

With an expert-parallel size of n, n consecutive data-parallel ranks hold different experts and call
them by the same numbers, from 0 on. The file of each expert's weights has the number that it has
among all. No file says which rank holds which experts: `qmaps.capture.readers.weights` compares.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qmaps.errors import CaptureError

FILE = re.compile(r"layer_\d+_expert_\d+_mp_rank_\d+_model_states\.pt")
NAME = re.compile(r"(.*deepspeed_moe\.experts\.deepspeed_experts\.)(\d+)(\..*)")
AUTOMATIC = ("ds_autoep_layers", "autoep_layers")


class Experts:
    """The experts of one checkpoint.

    Args:
        model: the model's file.
        numbers: of how many experts the model's layers are.
    """

    def __init__(self, model: Path, numbers: Sequence[int]) -> None:
        self._model = model
        self._numbers = numbers

    @classmethod
    def of(cls, model: Path, saved: Mapping[str, Any], *, several: bool) -> Experts | None:
        """The experts; None if there are none.

        Args:
            model: the model's file.
            saved: what it holds.
            several: whether there are several model-parallel ranks.

        Raises:
            CaptureError: the checkpoint has experts of a kind that is not read.
        """
        if any(saved.get(key) for key in AUTOMATIC):
            raise CaptureError(
                f"{str(model)!r} is of experts that DeepSpeed's AutoEP made of a model's own, "
                "which are not read"
            )
        files = any(FILE.fullmatch(path.name) for path in model.parent.iterdir())
        if not files and not saved.get("num_experts"):
            return None
        if several:
            raise CaptureError(
                f"{str(model)!r} is of experts and of several model-parallel ranks; experts are "
                "read of data-parallel ranks alone"
            )
        return cls(model, [int(number) for number in saved.get("num_experts") or ()])

    def names(
        self, parameters: Sequence[str], part: int, parts: int, every: Sequence[str]
    ) -> dict[str, str]:
        """Names of the experts of some ranks among all experts.

        Args:
            parameters: names of the parameters of a group, as a rank calls them.
            part: number of the expert-parallel rank.
            parts: number of expert-parallel ranks; 1 for groups without experts.
            every: names of the parameters of all groups. DeepSpeed may divide the experts of a
                layer among groups, by their size.

        Returns:
            The name among all, by the rank's own name; experts alone.

        Raises:
            CaptureError: a parameter of ranks with different experts is of none, or there are more
                or fewer experts than the model's file says.
        """
        matches = {name: NAME.fullmatch(name) for name in parameters}
        if parts > 1 and (odd := [name for name, match in matches.items() if match is None]):
            raise CaptureError(
                f"{str(self._model)!r} has {odd[0]!r} in a group whose ranks have different "
                "experts, and it is no expert's"
            )
        found = {name: match for name, match in matches.items() if match is not None}
        local: dict[str, int] = {}
        for match in filter(None, map(NAME.fullmatch, every)):
            local[match[1]] = max(local.get(match[1], 0), int(match[2]) + 1)
        for count in {local[match[1]] for match in found.values()}:
            if count * parts not in self._numbers:
                numbers = ", ".join(map(str, self._numbers)) or "no"
                raise CaptureError(
                    f"{str(self._model)!r} is of layers with {numbers} experts, but {parts} ranks "
                    f"have {count} of one layer each"
                )
        return {
            name: f"{match[1]}{part * local[match[1]] + int(match[2])}{match[3]}"
            for name, match in found.items()
        }
