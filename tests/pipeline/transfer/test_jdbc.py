"""JDBC catalogs: PyIceberg writes them on SQLite and Postgres, with and without the column of views."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from duckicelake.errors import BadRequest, ServiceUnavailable
from duckicelake.pipeline.transfer.options import TransferReport
from duckicelake.pipeline.transfer.serverless import CREATE_TABLES, open_database
from tests.pipeline.holding import list_files, list_named
from tests.pipeline.transfer.ferry import Ferry, check_signed, describe, write_properties
from tests.rest.proxy import Wire, wire_to

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", None, "c"]})


def fill(catalog: SqlCatalog, namespace: str, name: str) -> Table:
    """A table of three rows, in two snapshots."""
    catalog.create_namespace_if_not_exists(namespace)
    table = catalog.create_table(f"{namespace}.{name}", ROWS.schema)
    table.append(ROWS.slice(0, 1))
    table.append(ROWS.slice(1))
    return table


def open_sqlite(ferry: Ferry) -> tuple[SqlCatalog, Path]:
    """A new catalog on SQLite, whose files lie where the lake takes them."""
    path = ferry.folder.parent / "catalog.db"
    return SqlCatalog("one", uri=f"sqlite:///{path}", warehouse=f"file://{ferry.folder}"), path


def test_sqlite_with_views(ferry: Ferry) -> None:
    """V1: tables are registered with their history, and a view comes along, its own catalog's name left out."""
    catalog, path = open_sqlite(ferry)
    fill(catalog, "a.b", "t")
    catalog.close()
    ferry.run("CREATE NAMESPACE {h}.tmp", "USE {h}.tmp", "CREATE VIEW {h}.tmp.v AS SELECT 1 AS one", "USE spark_catalog.default")
    answer = ferry.served.server.get("namespaces/tmp/views/v").json
    metadata = answer["metadata"]
    metadata["versions"][-1]["default-catalog"] = "one"
    place = ferry.folder / "v.metadata.json"
    place.write_text(json.dumps(metadata))
    conn = sqlite3.connect(path)
    conn.execute("INSERT INTO iceberg_tables VALUES ('one', 'a.b', 'v', ?, NULL, 'VIEW')", [f"file://{place}"])
    conn.execute("INSERT INTO iceberg_tables VALUES ('one', 'a.b', 'none', 'file:///none/v.json', NULL, 'TABLE')")
    conn.commit()
    conn.close()
    given = {"mode": "register", "property": ["catalog-name=one"]}
    report = ferry.bring("import", f"sqlite:///{path}", **given)
    assert describe(report) == [("a.b.none", "failed", None), ("a.b.t", "done", 3), ("a.b.v", "done", None)], report.describe()
    assert report.moved[1].snapshots == 2
    assert ferry.run("SELECT * FROM {h}.a.b.v") == [{"one": 1}]
    version = ferry.served.server.get("namespaces/a%1Fb/views/v").json["metadata"]["versions"][-1]
    assert "default-catalog" not in version
    again = ferry.bring("import", f"sqlite:///{path}", **given)
    assert describe(again) == [("a.b.none", "failed", None), ("a.b.t", "already-there", 3), ("a.b.v", "already-there", None)]


@pytest.mark.long
def test_postgres_without_views(ferry: Ferry, tmp_path: Path) -> None:
    """V0, in a database that holds two catalogs: which is meant has to be said; rows are copied."""
    dsn = ferry.served.lake.dsn
    parts = conninfo_to_dict(dsn)
    user, password, address = parts["user"], parts["password"], "{host}:{port}/{dbname}".format(**parts)
    for name in ("one", "two"):
        catalog = SqlCatalog(name, uri=f"postgresql+psycopg://{user}:{password}@{address}", warehouse=f"file://{ferry.folder}")
        fill(catalog, name, "t")
        catalog.close()
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("ALTER TABLE iceberg_tables DROP COLUMN iceberg_type")
    uri, properties = f"postgresql://{address}", tmp_path / "p.toml"
    properties.write_text(f'"jdbc.user" = "{user}"\n"jdbc.password" = "{password}"\n')
    with pytest.raises(BadRequest, match="catalog-name=NAME: there are one, two"):
        ferry.bring("import", uri, mode="copy", properties=properties)
    report = ferry.bring("import", uri, mode="copy", properties=properties, property=["catalog-name=two"])
    assert describe(report) == [("two.t", "done", 3)], report.describe()
    assert sorted(ferry.ask_duckdb("FROM lake.two.t")) == [(1, "a"), (2, None), (3, "c")]
    with pytest.raises(ServiceUnavailable) as refused:
        ferry.bring("import", uri, mode="copy", **write_properties(tmp_path, {"jdbc.user": "nobody", "jdbc.password": "hidden"}))
    assert "hidden" not in refused.value.message


@pytest.mark.long
def test_an_export_is_read_by_pyiceberg(ferry: Ferry) -> None:
    """Into a database without tables; each run finds what is there already, and a table that was written to is not compared."""
    ferry.served.lake.duckdb().execute("CREATE SCHEMA s; CREATE TABLE s.t AS SELECT 7::BIGINT AS id, NULL::VARCHAR AS name")
    path = ferry.folder.parent / "new.db"
    sqlite3.connect(path).close()
    given = {"property": [f"warehouse=file://{ferry.folder}", "catalog-name=one"]}
    report = ferry.bring("export", f"sqlite:///{path}", **given)
    assert describe(report) == [("s.t", "done", 1)], report.describe()
    catalog = SqlCatalog("one", uri=f"sqlite:///{path}", warehouse=f"file://{ferry.folder}")
    table = catalog.load_table("s.t")
    assert table.scan().to_arrow().to_pylist() == [{"id": 7, "name": None}]
    check_signed(report, json.loads(Path(table.metadata_location.removeprefix("file:")).read_text()))
    assert describe(ferry.bring("export", f"sqlite:///{path}", **given)) == [("s.t", "already-there", 1)]
    table.append(table.scan().to_arrow())
    catalog.close()
    again = ferry.bring("export", f"sqlite:///{path}", **given)
    assert [(one.verdict, one.message) for one in again.moved] == [("already-there", "written to since, so not compared")]


@dataclass(frozen=True, slots=True)
class Postgres:
    """A catalog in the lake's own Postgres, reached by a wire that can be cut; as the job is told of it, and as PyIceberg reads it."""

    ferry: Ferry
    wire: Wire
    conn: psycopg.Connection

    @property
    def uri(self) -> str:
        return f"postgresql://127.0.0.1:{self.wire.port}/{self.parts['dbname']}"

    @property
    def parts(self) -> dict[str, Any]:
        return conninfo_to_dict(self.ferry.served.lake.dsn)

    def export(self, **more: Any) -> TransferReport:
        """Export the lake's tables."""
        login = {f"jdbc.{name}": str(self.parts[name]) for name in ("user", "password")}
        known = {"warehouse": f"file://{self.ferry.folder}", "catalog-name": "one"}
        return self.ferry.bring("export", self.uri, **write_properties(self.ferry.folder.parent, login | known), **more)

    def open(self) -> SqlCatalog:
        """The catalog, past the wire."""
        address = "{user}:{password}@{host}:{port}/{dbname}".format(**self.parts)
        place = {"uri": f"postgresql+psycopg://{address}", "warehouse": f"file://{self.ferry.folder}"}
        return SqlCatalog("one", **place, init_catalog_tables="false")

    def list_rows(self) -> list[tuple[str, str]]:
        """Tables and their metadata files."""
        return self.conn.execute("SELECT table_name, metadata_location FROM iceberg_tables ORDER BY 1").fetchall()


@pytest.fixture
def postgres(ferry: Ferry) -> Iterator[Postgres]:
    """Nothing in it, and two tables in the lake."""
    ferry.served.lake.duckdb().execute(
        "CREATE SCHEMA s; CREATE TABLE s.a AS SELECT range AS id, 'n' || range AS name FROM range(50); CREATE TABLE s.b AS FROM s.a"
    )
    parts = conninfo_to_dict(ferry.served.lake.dsn)
    dsn = ferry.served.lake.dsn
    with wire_to(str(parts["host"]), int(str(parts["port"]))) as wire, psycopg.connect(dsn, autocommit=True) as conn:
        yield Postgres(ferry, wire, conn)


@pytest.mark.long
def test_an_export_to_a_postgres_that_goes_in_the_midst(postgres: Postgres) -> None:
    """What is known there by then is told and stays; the next run does the rest, clears up, and PyIceberg reads each table once."""

    def cut(step: str) -> None:
        if step == "publish s.b":
            postgres.wire.cut()

    report = postgres.export(tell=cut)
    assert describe(report) == [("s.a", "done", 50), ("s.b", "failed", None)], report.describe()
    message = report.moved[1].message
    assert message.startswith(f"{postgres.uri}: "), message
    assert str(postgres.parts["password"]) not in message
    postgres.wire.mend()
    again = postgres.export(grace=0)
    assert describe(again) == [("s.a", "already-there", 50), ("s.b", "done", 50)], again.describe()
    assert describe(postgres.export(grace=0)) == [("s.a", "already-there", 50), ("s.b", "already-there", 50)]
    assert [name for name, _ in postgres.list_rows()] == ["a", "b"]
    assert list_files(postgres.ferry.folder) == list_named(*(location for _, location in postgres.list_rows()))
    with closing(postgres.open()) as catalog:
        for name in ("s.a", "s.b"):
            assert sorted(catalog.load_table(name).scan().to_arrow()["id"].to_pylist()) == list(range(50))


@pytest.mark.long
def test_an_export_to_postgres_without_views(postgres: Postgres) -> None:
    """V0: a database whose tables were made before there were views; PyIceberg goes on with what came there."""
    conn = postgres.conn
    conn.execute(CREATE_TABLES)
    conn.execute("ALTER TABLE iceberg_tables DROP COLUMN iceberg_type")
    assert describe(postgres.export()) == [("s.a", "done", 50), ("s.b", "done", 50)]
    conn.execute("ALTER TABLE iceberg_tables ADD COLUMN iceberg_type VARCHAR(5)")
    with closing(postgres.open()) as catalog:
        table = catalog.load_table("s.a")
        table.append(table.scan().to_arrow())
    told = [(one.verdict, one.message) for one in postgres.export().moved]
    assert told == [("already-there", "written to since, so not compared"), ("already-there", "")]


@pytest.mark.long
def test_another_database_is_refused() -> None:
    """Before anybody connects."""
    with pytest.raises(BadRequest, match="mysql is no database"):
        open_database("mysql://localhost/db", {})
