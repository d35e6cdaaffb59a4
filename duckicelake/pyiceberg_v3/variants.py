"""Files with variants for PyIceberg: the patched function by which it reads a file's schema."""

# PyIceberg has no public hooks, so this fits the releases in KNOWN_VERSIONS. Its types are not complete.
# pyright: reportUnknownVariableType=false

from typing import Any

import pyarrow as pa
from pyiceberg.io import pyarrow as pyiceberg_arrow
from pyiceberg.schema import Schema

PYARROW_TO_SCHEMA = pyiceberg_arrow.pyarrow_to_schema
FIELD_ID = b"PARQUET:field_id"


def pyarrow_to_schema(schema: Any, *args: Any, **options: Any) -> Schema:
    """Return the Iceberg schema of a file without its variants, which DuckDB writes as columns of a table only.

    The parts of a variant have no field ids. PyIceberg takes a file in which one id is missing for a file without ids, and refuses it.
    """
    kept = [field for field in schema if not (_has_id(field) and _is_variant(field.type))]
    shown = schema if len(kept) == len(schema) else pa.schema(kept, metadata=schema.metadata)
    return PYARROW_TO_SCHEMA(shown, *args, **options)


def _has_id(field: Any) -> bool:
    return FIELD_ID in (field.metadata or {})


def _is_variant(kind: Any) -> bool:
    """Return True if a type is the group of a variant. Source: Parquet's VariantEncoding.md"""
    children: list[Any] = list(kind) if pa.types.is_struct(kind) else []
    return {"metadata", "value"} <= {child.name for child in children} and not any(map(_has_id, children))
