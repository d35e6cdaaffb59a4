"""Rows by key or by partition: the latest of each in the files, and the statements that bring them into the table."""

import re
from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from duckicelake.errors import BadRequest
from duckicelake.pipeline.ingest.target import quote

_RANK = "__duckicelake_rank"
_FUNCTIONS = {**{unit: f"{unit}s" for unit in ("year", "month", "day", "hour")}, "bucket": "bucket", "truncate": "truncate"}
"""Iceberg's transforms, as functions of its catalogs in Spark."""
_TERM = re.compile(r"(?P<transform>[a-z]+)(?:\[(?P<number>[0-9]+)\])?\((?P<column>.+)\)")


def find_latest(rows: DataFrame, key: Sequence[str], order_by: str | None) -> DataFrame:
    """One row for each key: the last by `order_by`.

    Raises: BadRequest: several rows of a key could be the last, or there are several and nothing to order them by
    """
    columns = [F.col(quote(name)) for name in key]
    latest = rows
    if order_by is not None:
        last_first = Window.partitionBy(*columns).orderBy(F.col(quote(order_by)).desc_nulls_last())
        latest = rows.withColumn(_RANK, F.rank().over(last_first)).where(F.col(_RANK) == 1).drop(_RANK).distinct()
    twice = latest.groupBy(*columns).count().where("count > 1").limit(1).collect()
    if twice:
        shown = ", ".join(f"{name} = {twice[0][name]!r}" for name in key)
        remedy = "--order-by says which one is the last" if order_by is None else f"they do not differ in {order_by}"
        raise BadRequest(f"several rows have the key {shown}: {remedy}")
    return latest


def check_held(held: DataFrame, latest: DataFrame, key: Sequence[str]) -> None:
    """Raises: BadRequest: the table has several rows of a key that the files have; `latest` has one for each."""
    columns = [F.col(quote(name)) for name in key]
    same = held.select(*columns).join(latest.select(*columns), list(key), "left_semi")
    twice = same.groupBy(*columns).count().where("count > 1").limit(1).collect()
    if twice:
        shown = ", ".join(f"{name} = {twice[0][name]!r}" for name in key)
        raise BadRequest(f"the table has several rows of one key ({shown}); nothing was taken")


def format_merge(table: str, source: str, key: Sequence[str]) -> str:
    """The statement that updates rows of known keys and inserts the others."""
    same = " AND ".join(f"t.{quote(name)} = s.{quote(name)}" for name in key)
    return f"MERGE INTO {table} t USING {quote(source)} s ON {same} WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"


def format_partitions(catalog: str, terms: Sequence[str], alias: str) -> list[str]:
    """The values of partitions, whose terms are as `TableHead` has them, as Spark's SQL makes them of a row.

    Raises: BadRequest: one is of a column inside another, or by a transform that Spark does not have
    """
    return [_format_partition(catalog, term, alias) for term in terms]


def _format_partition(catalog: str, term: str, alias: str) -> str:
    found = _TERM.fullmatch(term)
    if found is None or found["column"] == "?" or (found["transform"] not in _FUNCTIONS and found["transform"] != "identity"):
        raise BadRequest(f"the table has rows that do not lie in partitions by {term}, and cannot be told from others by it")
    column = f"{alias}.{quote(found['column'])}"
    if found["transform"] == "identity":
        return column
    number = "" if found["number"] is None else f"{found['number']}, "
    return f"{quote(catalog)}.system.{_FUNCTIONS[found['transform']]}({number}{column})"


def format_removal(table: str, source: str, partitions: Sequence[str]) -> str:
    """The statement that deletes the rows of partitions; the source has the values of each, p0, p1 …"""
    same = " AND ".join(f"{value} <=> s.p{place}" for place, value in enumerate(partitions))
    return f"MERGE INTO {table} t USING {quote(source)} s ON {same} WHEN MATCHED THEN DELETE"
