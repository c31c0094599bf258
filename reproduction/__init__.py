"""Figures and tables of the five papers, reproduced and compared with the published ones.

Each figure or table is an `exhibit.Exhibit` in a file of its own, named by its number, in the
package of its paper: it makes frames, draws them, and compares them with the paper. `run.run` makes
all of them and writes a page for each paper and a summary. The numbers that papers print are in
``papers/<paper>/<exhibit>.csv``; all other numbers come from frames.
A new file is found automatically.

This package is next to `benchmarks`, and is not installed: `qmaps` does not import it. It does not
import benchmarks; tables that they make are read as files.
"""

from reproduction.catalogue import PAPERS
from reproduction.run import run

__all__ = ["PAPERS", "run"]
