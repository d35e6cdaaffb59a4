"""Table properties that mean something to the catalog itself."""

import re
from collections.abc import Mapping

from duckicelake.errors import BadRequest
from duckicelake.iceberg.metadata import FORMAT_VERSIONS
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import walk_fields

FORMAT_VERSION = "format-version"
DEFAULT_FORMAT_VERSION = 2
RESERVED_PROPERTIES = frozenset(
    {
        FORMAT_VERSION,
        "uuid",
        "snapshot-count",
        "current-snapshot-summary",
        "current-snapshot-id",
        "current-snapshot-timestamp-ms",
        "current-schema",
        "default-partition-spec",
        "default-sort-order",
    }
)
"""Names that Iceberg keeps for what it derives: never stored."""

NEW_TABLE_DEFAULTS: Mapping[str, str] = {"write.parquet.compression-codec": "zstd"}
"""What Java sets on new tables unless the client says otherwise."""

PREVIOUS_VERSIONS = "write.metadata.previous-versions-max"
PREVIOUS_VERSIONS_DEFAULT = 100
METRICS_PREFIX = "write.metadata.metrics.column."
COMMIT_NUMBER_PROPERTIES = (
    "commit.retry.num-retries",
    "commit.retry.min-wait-ms",
    "commit.retry.max-wait-ms",
    "commit.retry.total-timeout-ms",
)

_COUNT = re.compile(r"[+-]?\d{1,10}", re.ASCII)


def drop_reserved(properties: Mapping[str, str]) -> dict[str, str]:
    """Those that a table keeps."""
    return {name: value for name, value in properties.items() if name not in RESERVED_PROPERTIES}


def find_format_version(properties: Mapping[str, str]) -> int | None:
    """The format version that the properties ask for.

    Raises: BadRequest — not a number
    """
    text = properties.get(FORMAT_VERSION)
    if text is None:
        return None
    if _COUNT.fullmatch(text) is None:
        raise BadRequest(f"Invalid table property {FORMAT_VERSION}: {text[:100]!r} is no number; send 1, 2 or 3")
    return int(text)


def check_new_version(format_version: int) -> None:
    """Raise BadRequest when no new table can have that format version."""
    if format_version not in FORMAT_VERSIONS:
        raise BadRequest(f"Unsupported format version: v{format_version} (supported: v{FORMAT_VERSIONS[-1]})")


def get_previous_versions_max(properties: Mapping[str, str]) -> int:
    """How many earlier metadata files the log names; at least 1, and the default for what is no number."""
    text = properties.get(PREVIOUS_VERSIONS, "")
    return max(1, int(text)) if _COUNT.fullmatch(text) else PREVIOUS_VERSIONS_DEFAULT


def check_properties(properties: Mapping[str, str], schema: Schema) -> None:
    """Raise BadRequest when a new table's properties name missing columns or are no numbers, as Java's catalogs do."""
    paths = {path for path, _ in walk_fields(schema.fields)}
    for name, value in properties.items():
        column = name.removeprefix(METRICS_PREFIX)
        if column != name and column not in paths:
            raise BadRequest(f"Invalid metrics config, could not find column {column} from table prop {name} in schema; name a column")
        if name in COMMIT_NUMBER_PROPERTIES and _COUNT.fullmatch(value) is None:
            raise BadRequest(f"Table property {name} must have integer value")
        if name in COMMIT_NUMBER_PROPERTIES and int(value) < 0:
            raise BadRequest(f"Table property {name} must have non negative integer value")
