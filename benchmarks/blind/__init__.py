"""Verdicts of `qmaps.recommend` against trainings of models not used to choose its thresholds."""
