"""Losses in place of the papers' metrics, at the best rate of each baseline."""
