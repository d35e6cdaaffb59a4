"""DuckDB sessions that outlive a history: loading the extensions costs more than most histories do."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from duckdb import DuckDBPyConnection

from duckicelake.embedded.ducklake import LakeAddress, format_attach, format_secret
from tests.support.keys import format_s3_keys
from tests.support.lakes import FreshLake, open_duckdb
from tests.support.readers import DuckDBIcebergReader, DuckLakeReader, Served, format_iceberg_attach
from tests.support.shared_stack import SharedStack


@dataclass(slots=True)
class Sessions:
    """Sessions with the extensions and the S3 keys; each is lent to one user at a time, with one catalog attached."""

    stack: SharedStack
    idle: list[DuckDBPyConnection] = field(default_factory=list[DuckDBPyConnection])
    opened: ExitStack = field(default_factory=ExitStack)

    @contextmanager
    def on_lake(self, lake: FreshLake) -> Generator[DuckLakeReader]:
        """A session with the lake attached as `lake` and in use."""
        with self._lend(format_lake_attach(lake), "lake") as conn:
            conn.execute("USE lake")
            yield DuckLakeReader(conn)

    def attach_again(self, reader: DuckLakeReader, lake: FreshLake) -> None:
        """Let a session on the lake forget what it knows of its tables."""
        reader.conn.execute("USE memory.main")
        reader.conn.execute("DETACH lake")
        reader.conn.execute(format_lake_attach(lake))
        reader.conn.execute("USE lake")

    @contextmanager
    def on_catalog(self, served: Served) -> Generator[DuckDBIcebergReader]:
        """A session with the served catalog attached as `ice`."""
        with self._lend(format_iceberg_attach(served.server, served.warehouse), "ice") as conn:
            # A namespace with a dot in its name is found only after a listing.
            conn.execute("SELECT count(*) FROM duckdb_tables() WHERE database_name = 'ice'")
            yield DuckDBIcebergReader(conn)

    @contextmanager
    def _lend(self, attach: str, name: str) -> Generator[DuckDBPyConnection]:
        conn = self.idle.pop() if self.idle else self._open()
        try:
            conn.execute(attach)
            yield conn
            conn.execute("USE memory.main")
            conn.execute(f"DETACH {name}")
            self.idle.append(conn)
        finally:
            # After a failure it is not lent again; and once the lake is gone, DuckDB cannot end a transaction on it and aborts.
            if conn not in self.idle:
                conn.close()

    def _open(self) -> DuckDBPyConnection:
        conn = open_duckdb()
        self.opened.callback(conn.close)
        conn.execute(format_secret(format_s3_keys(self.stack.store)))
        return conn


def format_lake_attach(lake: FreshLake) -> str:
    """Return the statement that attaches a lake as `lake`."""
    return format_attach(LakeAddress(lake.dsn, lake.metadata_schema))
