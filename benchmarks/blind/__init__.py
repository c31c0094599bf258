"""Verdicts of `qmaps.recommend` against trainings of models that its thresholds have not seen."""
