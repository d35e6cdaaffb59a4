"""Many rows at once: lists of ids that go to Postgres, and rows that come from it, without a call of Python's for each value."""

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
    """Writes flat lists of texts and numbers as JSON, whose arrays Postgres reads as its own where nothing in them is escaped."""

    def dump(self, obj: list[Any]) -> Buffer | None:
        """Return the array as Postgres reads it."""
        if JSON_TYPES.issuperset(map(type, obj)):
            text = TO_JSON(obj)
            if "\\" not in text:
                return f"{{{text[1:-1]}}}".encode(self._tx.encoding)
        return super().dump(obj)


PLANNER_SETTINGS = (sql.SQL("SET jit = off"), sql.SQL("SET enable_seqscan = off"))


def tune_connection(conn: psycopg.Connection, *settings: sql.Composable) -> None:
    """Have a connection write lists quickly, and set how Postgres plans its queries; more settings go in the same round trip.

    Postgres compiles none of our queries, because that takes longer than any of them does. It reads no table from end to end where an
    index serves: without statistics, and for statements whose parameters it does not look at, it takes big tables for small ones.
    """
    conn.adapters.register_dumper(list, JsonListDumper)
    conn.execute(sql.SQL("; ").join([*PLANNER_SETTINGS, *settings]))


def fetch_tuples(conn: psycopg.Connection, kind: type[Row], query: LiteralString, **parameters: object) -> list[Row]:
    """Return a query's rows as named tuples: for many rows."""
    make = tuple_maker(kind)
    with conn.cursor(row_factory=lambda _: make) as cursor:
        return cursor.execute(query, parameters).fetchall()


def unpack_int64s(packed: bytes) -> list[int]:
    """Return the whole numbers that `int8send` wrote one behind the other."""
    numbers = array("q", packed)
    if byteorder == "little":
        numbers.byteswap()
    return numbers.tolist()
