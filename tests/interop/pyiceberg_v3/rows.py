"""Rows for tables of version 3."""

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
BY_NAME = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))


def make_rows(*ids: int, name: str | None = None) -> pa.Table:
    """Rows with these ids; two names take turns, NULL has every fifth."""
    names = [name or (None if i % 5 == 4 else f"n{i % 2}") for i in ids]
    return pa.table({"id": ids, "name": names}, schema=SCHEMA.as_arrow())
