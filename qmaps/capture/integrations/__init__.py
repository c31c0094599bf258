"""Callbacks for trainers of other packages; each module needs the package of its name."""
