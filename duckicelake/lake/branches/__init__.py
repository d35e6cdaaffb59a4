"""Branches of a whole lake: metadata schemas of views over the lake's tables as of a fork point, and what a branch writes itself.

`commands.branches` and, for REST, `catalog.repositories` create, list, compare, merge and delete them; `catalog.warehouse` finds the branch
that a request names.
"""
