"""A lake whose catalog, Postgres and store a job reaches by wires that can be cut, while everybody else reaches them as before."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from duckdb import DuckDBPyConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from duckicelake.commands.facts import format_facts
from duckicelake.commands.jobs.session import open_duckdb
from duckicelake.embedded.home import open_home
from duckicelake.pipeline.common.reports import Progress
from tests.rest.proxy import Wire, wire_to
from tests.rest.serving import Server, make_settings
from tests.support.readers import Served


@dataclass(frozen=True, slots=True)
class Wired:
    """The lake as others have it (`whole`) and as the job has it (`served`), the three wires, and the steps that the job told."""

    whole: Served
    served: Served
    catalog: Wire
    postgres: Wire
    store: Wire
    told: list[str] = field(default_factory=list[str])

    def cutting(self, wire: Wire, step: str) -> Progress:
        """What hears of each step, and cuts a wire when one has these words in it."""

        def tell(told: str) -> None:
            self.told.append(told)
            if step in told:
                wire.cut()

        return tell

    def open_duckdb(self, home: Path, *, read_only: bool) -> DuckDBPyConnection:
        """DuckDB as a job opens it."""
        [lake] = make_settings(self.served.lake).lakes()
        return open_duckdb(format_facts(lake, self.served.server.uri), open_home(home), read_only=read_only)


@contextmanager
def open_wired(served: Served) -> Generator[Wired]:
    """All wires, whole at first."""
    address, endpoint = conninfo_to_dict(served.lake.dsn), urlsplit(served.lake.store.endpoint)
    with (
        wire_to("127.0.0.1", served.server.port) as catalog,
        wire_to(str(address["host"]), int(str(address["port"]))) as postgres,
        wire_to(str(endpoint.hostname), int(str(endpoint.port))) as store,
    ):
        dsn = make_conninfo(served.lake.dsn, host="127.0.0.1", port=postgres.port)
        access = replace(served.lake.store, endpoint=f"{endpoint.scheme}://127.0.0.1:{store.port}")
        lake = replace(served.lake, dsn=dsn, store=access)
        yield Wired(served, Served(lake, Server(catalog.port)), catalog, postgres, store)
