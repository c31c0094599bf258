"""Figures and tables of the five papers, reproduced and compared with the published ones.

Each figure or table has a file, named by its number, in the package of its paper. The file has an
`exhibit.Exhibit`: functions to make frames, to draw them, and to compare them with the paper.
`run.run` makes all of them and writes a page for each paper and a summary. Published numbers are in
``papers/<paper>/<name>.csv``; all other numbers come from frames. New files are found
automatically.

This package is next to `benchmarks` and is not installed: `qmaps` does not import it. It does not
import benchmarks; it reads their tables as files.
"""

from reproduction.catalogue import PAPERS
from reproduction.run import run

__all__ = ["PAPERS", "run"]
