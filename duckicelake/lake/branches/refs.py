"""The members of a repository by their names: the lake itself, which is called main, and its branches.

`catalog.repositories` and `commands.branch_history` call it before they read a log or a difference, on the same connection.
"""

import psycopg

from duckicelake.errors import NotFound
from duckicelake.lake.branches.registry import MAIN, find_branch
from duckicelake.lake.install import format_search_path


def get_ref_schema(conn: psycopg.Connection, lake_schema: str, name: str) -> str:
    """Return the metadata schema of the lake or of one of its branches. Raises: NotFound: there is no branch of that name."""
    if name == MAIN:
        return lake_schema
    conn.execute(format_search_path(lake_schema))
    branch = find_branch(conn, name)
    if branch is None:
        raise NotFound(f"Branch does not exist: {name[:64]!r}. `duckicelake branch list` lists the branches; {MAIN!r} is the lake itself.")
    return branch.schema_name
