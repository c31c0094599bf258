"""The documentation's site: pages made of the registries, docstrings, notebooks and reports.

`docsite.kinds` makes them, one kind a file; `docsite.hooks` hands them to MkDocs; `docsite.links`
checks what came out. Nothing of it is shipped, and no page that is made is committed.
"""
