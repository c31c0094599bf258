"""Losses that stand for the papers' metrics, at the rate that is best for each baseline."""
