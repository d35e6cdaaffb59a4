"""A served lake as Trino shows it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tests.rest.serving import WAREHOUSE
from tests.support.readers import Ident, Served, quote_ident
from tests.support.trino.server import Trino


@dataclass(frozen=True, slots=True)
class TrinoReader:
    """Trino over REST, under the catalog name given. It writes every name in lower case."""

    trino: Trino
    catalog: str
    name: str = "Trino"
    blurs_nulls: bool = False

    def read(self, ident: Ident, snapshot_id: int | None = None) -> pa.Table:
        """A table's rows at head or at a snapshot. A small number would be an INTEGER to Trino, which it refuses as a snapshot."""
        at = "" if snapshot_id is None else f" FOR VERSION AS OF BIGINT '{snapshot_id}'"
        return self.trino.arrow(f"SELECT * FROM {self.catalog}.{quote_ident(ident)}{at}")

    def find_rows(self, sql: str) -> list[dict[str, Any]]:
        """The rows of a query; `{}` in it is the catalog."""
        return self.trino.arrow(sql.format(self.catalog)).to_pylist()


def open_trino(trino: Trino, served: Served, more: Mapping[str, str] | None = None) -> TrinoReader:
    """The running Trino, with this catalog added; `more` are settings of the connector."""
    store = served.lake.store
    properties = {
        "iceberg.catalog.type": "rest",
        "iceberg.rest-catalog.uri": served.server.uri,
        "iceberg.rest-catalog.warehouse": WAREHOUSE,
        "iceberg.rest-catalog.nested-namespace-enabled": "true",
        "fs.s3.enabled": "true",
        "s3.endpoint": store.endpoint or "",
        "s3.region": store.region,
        "s3.path-style-access": "true",
        "s3.aws-access-key": store.access_key_id or "",
        "s3.aws-secret-key": store.secret_access_key or "",
    }
    return TrinoReader(trino, trino.add({**properties, **(more or {})}))


def fold_names(table: pa.Table) -> pa.Table:
    """A table under the names that Trino gives its columns, those inside structs included."""
    return table.rename_columns([name.lower() for name in table.column_names])
