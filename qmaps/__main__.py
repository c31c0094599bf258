"""``python -m qmaps``."""

from qmaps.cli import main

main()
