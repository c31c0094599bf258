"""Losses of the blind test."""

from __future__ import annotations

import pandas as pd

from benchmarks.paired import paired


def tuned_losses(trials: pd.DataFrame) -> pd.Series:
    """Losses at the tuned rates by model, quantizer and seed."""
    tuned = trials[(trials["length"] == 1) & (trials["factor"] == 1)]
    return tuned.set_index(["judge", "quantizer", "seed"])["loss"].sort_index()


def nats(losses: pd.Series, model: str, quantizer: str, reference: str) -> str:
    """Difference of a quantizer from another in `tuned_losses`, with its 95 % interval."""
    difference = paired(losses[model, quantizer], losses[model, reference])
    return "{difference:+.4f} ({low:+.4f} to {high:+.4f})".format(**difference)
