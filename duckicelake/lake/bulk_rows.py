"""Fast transfer of many rows: lists of ids sent to Postgres, and rows read from it, without a Python call for each value.

`lake.connect` registers the dumper on every connection, and `pipeline.publish` on those of Spark's driver and executors. `lake.read_files`
fetches rows with it.
"""

import json
from array import array
from sys import byteorder
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg import sql
from psycopg.abc import Buffer
from psycopg.types.array import ListDumper

from duckicelake.values import tuple_maker

Row = TypeVar("Row", bound=tuple[Any, ...])

JSON_TYPES = frozenset((int, str, bool, type(None)))
TO_JSON = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


class JsonListDumper(ListDumper):
    """Writes flat lists of texts and numbers as JSON; Postgres reads a JSON array as its own array when nothing in it is escaped."""

    def dump(self, obj: list[Any]) -> Buffer | None:
        """Return the array in Postgres' text format."""
        if JSON_TYPES.issuperset(map(type, obj)):
            text = TO_JSON(obj)
            if "\\" not in text:
                return f"{{{text[1:-1]}}}".encode(self._tx.encoding)
        return super().dump(obj)


PLANNER_SETTINGS = (sql.SQL("SET jit = off"), sql.SQL("SET enable_seqscan = off"))


def tune_connection(conn: psycopg.Connection, *settings: sql.Composable) -> None:
    """Register the fast list dumper on a connection and set Postgres' planner; `settings` go in the same round trip.

    JIT is off because it takes longer than any of our queries. Sequential scans are off because the planner takes big tables for small
    ones when it has no statistics or does not look at the parameters.
    """
    conn.adapters.register_dumper(list, JsonListDumper)
    conn.execute(sql.SQL("; ").join([*PLANNER_SETTINGS, *settings]))


def fetch_tuples(conn: psycopg.Connection, kind: type[Row], query: LiteralString, **parameters: object) -> list[Row]:
    """Return the rows of a query as named tuples; faster than dataclasses when there are many."""
    make = tuple_maker(kind)
    with conn.cursor(row_factory=lambda _: make) as cursor:
        return cursor.execute(query, parameters).fetchall()


def unpack_int64s(packed: bytes) -> list[int]:
    """Return the integers of a concatenation of `int8send` values."""
    numbers = array("q", packed)
    if byteorder == "little":
        numbers.byteswap()
    return numbers.tolist()
