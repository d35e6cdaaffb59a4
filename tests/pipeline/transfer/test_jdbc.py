"""JDBC catalogs: PyIceberg writes them on SQLite and Postgres, with and without the column of views."""

import json
import sqlite3
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from duckicelake.errors import BadRequest, ServiceUnavailable
from duckicelake.pipeline.transfer.jdbc import open_database
from tests.pipeline.transfer.ferry import Ferry, describe, write_properties

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
    assert describe(ferry.bring("export", f"sqlite:///{path}", **given)) == [("s.t", "already-there", 1)]
    table.append(table.scan().to_arrow())
    catalog.close()
    again = ferry.bring("export", f"sqlite:///{path}", **given)
    assert [(one.verdict, one.message) for one in again.moved] == [("already-there", "written to since, so not compared")]


def test_another_database_is_refused() -> None:
    """Before anybody connects."""
    with pytest.raises(BadRequest, match="mysql is no database"):
        open_database("mysql://localhost/db", {})
