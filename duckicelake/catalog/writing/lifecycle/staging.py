"""Places that were given out for tables that were never made: their clients died before the commit, or gave up.

A note goes after what it tells of: what a crash leaves between the two is found again.
"""

from collections.abc import Sequence
from datetime import datetime

from duckicelake.catalog.warehouse import Warehouse
from duckicelake.catalog.writing.places import NO_TABLE
from duckicelake.lake.connect import reading, writing
from duckicelake.lake.read import read_data_path
from duckicelake.lake.writing.locations import (
    Staged,
    find_view_neighbour,
    forget_made,
    forget_staged,
    has_table,
    list_named_paths,
    list_other_paths,
    list_staged,
    list_statistics_paths,
)
from duckicelake.translate.locations import to_canonical, to_folder_uri, to_uri


def list_given_up(warehouse: Warehouse, before: datetime) -> Sequence[Staged]:
    """Return the places that were given out before that time and have no table; those that have one are forgotten."""
    with writing(warehouse.lake) as conn:
        forget_made(conn)
    with reading(warehouse.lake) as conn:
        return list_staged(conn, before)


def list_left(warehouse: Warehouse, noted: Staged, before: datetime) -> Sequence[str] | None:
    """Return what lies in a place that no table is in and nothing names; None while something there is younger than that time."""
    found = dict(warehouse.objects.list_modified(noted.location))
    if any(modified >= before for modified in found.values()):
        return None
    # read after the objects were listed: a table that was made since is among these
    with reading(warehouse.lake) as conn:
        place = to_canonical(noted.location)
        if has_table(conn, place) or find_view_neighbour(conn, place) is not None:
            return []
        paths = [path for path, is_relative in list_named_paths(conn, NO_TABLE, [place]) if not is_relative]
        named = {to_canonical(to_uri(path)) for path in (*paths, *list_other_paths(conn, [place]), *list_statistics_paths(conn, place))}
        data = to_folder_uri(read_data_path(conn))
    return sorted(uri for uri in found if to_canonical(uri) not in named and not to_canonical(uri).startswith(data))


def forget(warehouse: Warehouse, noted: Staged) -> None:
    """Forget a place in which nothing is left."""
    with writing(warehouse.lake) as conn:
        forget_staged(conn, noted)
