"""Several tables in one request: what no two of them may share, and whether all of it has landed before."""

from collections.abc import Sequence
from hashlib import sha256

import psycopg

from duckicelake.catalog.writing.bases import Ask, Base
from duckicelake.errors import BadRequest, CommitFailed
from duckicelake.iceberg.requests.requirements import asks_to_create
from duckicelake.lake.writing.idempotency import has_transaction, note_transaction
from duckicelake.lake.writing.transaction import Commit
from duckicelake.translate.locations import to_folder_uri
from duckicelake.translate.namespaces import to_schema_name
from duckicelake.translate.to_ducklake.commits import list_added
from duckicelake.translate.to_ducklake.names import fold_name


def check_named_once(asks: Sequence[Ask]) -> None:
    """Raise BadRequest when a request names one table twice: DuckDB folds case."""
    seen: dict[tuple[str, str], Ask] = {}
    for ask in asks:
        folded = fold_name(to_schema_name(ask.ident.namespace)), fold_name(ask.ident.name)
        other = seen.setdefault(folded, ask)
        if other is not ask:
            raise BadRequest(
                f"Cannot commit: {other.ident} and {ask.ident} are one table, as DuckDB folds case; put all its updates into one change."
            )


def check_apart(bases: Sequence[Base], locations: Sequence[str]) -> None:
    """Raise BadRequest when a table comes to a location within another's of the same request, or around it, or to the same."""
    if len(bases) < 2:
        return
    stays = [base.metadata is not None and base.metadata.location == location for base, location in zip(bases, locations, strict=True)]
    # what begins with a folder's name stands right behind it
    folders = sorted((to_folder_uri(location), stayed, location) for location, stayed in zip(locations, stays, strict=True))
    for (outer, first_stays, first), (inner, second_stays, second) in zip(folders, folders[1:], strict=False):
        if inner.startswith(outer) and not (first_stays and second_stays):
            raise BadRequest(
                f"The location {second!r} lies in another table's of the same request, or is the same: {first!r}. Choose another."
            )


def is_whole_replay(commit: Commit, asks: Sequence[Ask], landed: Sequence[bool], digest: str) -> bool:
    """Tell whether a request of which something is known to have landed has landed whole.

    What makes no snapshot shows in nothing, and so does a table that is gone: the request itself is known then.
    Raises: CommitFailed: it is another request that holds something of an earlier one
    """
    if all(landed) or has_transaction(commit.conn, digest):
        return True
    done = next(ask for ask, is_there in zip(asks, landed, strict=True) if is_there)
    missing = next(ask for ask, is_there in zip(asks, landed, strict=True) if not is_there)
    raise CommitFailed(
        f"What the request asks of {done.ident} was committed before, and what it asks of {missing.ident} was not part of that; "
        "nothing was done. Load the tables and commit what is missing."
    )


def note_together(commit: Commit, asks: Sequence[Ask], digest: str) -> None:
    """Remember a request over several tables, in its own transaction, if a copy of it is to be known."""
    if digest and any(_shows(ask) for ask in asks):
        note_transaction(commit.conn, digest)


def is_known(conn: psycopg.Connection, asks: Sequence[Ask], digest: str) -> bool:
    """Tell whether a request has landed whose tables are not all there any more."""
    return any(list_added(ask.commit.updates) for ask in asks) and has_transaction(conn, digest)


def _shows(ask: Ask) -> bool:
    """Tell whether a table shows by itself that what is asked has landed."""
    return bool(list_added(ask.commit.updates)) or asks_to_create(ask.commit.requirements)


def digest_together(asks: Sequence[Ask]) -> str:
    """Return what tells a request over several tables from others by what it asks for, whatever it requires; empty for one table."""
    if len(asks) < 2:
        return ""
    whole = sha256()
    for ask in sorted(asks, key=lambda ask: (ask.ident.namespace, ask.ident.name)):
        whole.update(repr((ask.ident, ask.commit.updates)).encode("utf-8", "surrogatepass"))
    return whole.hexdigest()
