"""The papers' ablations, at the size of a workload that trains in a second."""
