"""Diagnosis of an installation: versions, engines, problems, and the cost of a step."""

from qmaps.optim.doctor.examination import doctor
from qmaps.optim.doctor.findings import Finding
from qmaps.optim.doctor.report import Report
from qmaps.optim.doctor.speed import StepCost

__all__ = ["Finding", "Report", "StepCost", "doctor"]
