"""Figures and tables of the five papers, made here, with ours beside theirs.

Each figure or table is an `exhibit.Exhibit` in a file of its own, named by its number, in the
package of its paper: it makes frames, draws them, and says how they compare. `run.run` makes all
of them and writes a page for each paper and a summary. What papers print is data of the
package (``qmaps/lab/report/papers/<paper>/<exhibit>.csv``); whatever is ours comes from frames. A
new file is found by itself.

It stands beside `benchmarks`, outside of what is installed: nothing in `qmaps` imports it. Tables
that benchmarks make are read as files; it imports none of them.
"""

from reproduction.catalogue import PAPERS
from reproduction.run import run

__all__ = ["PAPERS", "run"]
