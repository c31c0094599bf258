"""The documentation's site, generated from the registries, docstrings, notebooks and reports.

`docsite.kinds` generates the pages, one kind a file; `docsite.hooks` hands them to MkDocs;
`docsite.links` checks the built site. The wheel leaves it out, and no generated page is committed.
"""
