"""Rows by key: the latest of each in the files, and the statement that brings them into the table."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from duckicelake.errors import BadRequest
from duckicelake.pipeline.ingest.target import quote

_RANK = "__duckicelake_rank"


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
