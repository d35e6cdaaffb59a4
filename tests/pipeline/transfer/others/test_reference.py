"""A REST catalog of another maker, Iceberg's own server: tables and views come from it by both modes, and go to it."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog

from tests.pipeline.transfer.ferry import Ferry, describe
from tests.pipeline.transfer.others.conftest import Abroad, know
from tests.rest.serving import make_settings, serve
from tests.support.lakes import make_lake
from tests.support.readers import Served
from tests.support.reference.server import serve_reference
from tests.support.shared_stack import SharedStack
from tests.support.spark import Spark

pytestmark = [pytest.mark.whole, pytest.mark.spark, pytest.mark.xdist_group("pipeline")]

COLUMNS = "id BIGINT NOT NULL COMMENT 'which', day DATE, part STRUCT<x: INT, y: STRING>"
ROWS = "SELECT id, DATE '2026-01-01' + CAST(id % 3 AS INT), named_struct('x', CAST(id AS INT), 'y', 'é') FROM range(100)"
VIEW = "SELECT 1 AS one"


def fill(abroad: Abroad, versions: Sequence[int]) -> None:
    """Tables `a.b.v1` and so on, each with all that its version has; an empty one, one of odd names, and a view."""
    abroad.run("CREATE NAMESPACE {o}.a", "CREATE NAMESPACE {o}.a.b", "CREATE NAMESPACE {o}.`Käse & b+c`")
    for version in versions:
        name = f"{{o}}.a.b.v{version}"
        properties = f"'format-version'='{version}', 'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read'"
        abroad.run(
            f"CREATE TABLE {name} ({COLUMNS}) USING iceberg PARTITIONED BY (days(day)) TBLPROPERTIES ({properties})",
            f"INSERT INTO {name} {ROWS}",
        )
        if version > 1:
            abroad.run(
                f"DELETE FROM {name} WHERE id % 10 = 1",
                f"ALTER TABLE {name} CREATE TAG old",
                f"ALTER TABLE {name} CREATE BRANCH dev",
                f"INSERT INTO {name}.branch_dev VALUES (1000, NULL, NULL)",
                f"UPDATE {name} SET part = NULL WHERE id = 5",
            )
        abroad.run(
            f"ALTER TABLE {name} ADD PARTITION FIELD bucket(4, id)",
            f"ALTER TABLE {name} RENAME COLUMN part TO Piece",
            f"ALTER TABLE {name} ADD COLUMN more DOUBLE",
            f"INSERT INTO {name} VALUES (200, DATE '1969-12-31', NULL, 0.5)",
        )
    odd = "{o}.`Käse & b+c`.`Sorten (alt)`"
    abroad.run("CREATE TABLE {o}.a.none (x STRING) USING iceberg", f"CREATE TABLE {odd} (Id INT) USING iceberg")
    abroad.run(f"INSERT INTO {odd} VALUES (1), (2)", f"CREATE VIEW {{o}}.a.v AS {VIEW}")


def read(abroad: Abroad, place: str, at: str = "") -> list[dict[str, Any]]:
    """The rows of a table, by their columns' order."""
    return abroad.run(f"SELECT * FROM {place}{at} ORDER BY 1")


def list_done(versions: Sequence[int], into: str = "") -> list[tuple[str, str, int | None]]:
    """What a run tells of all these, in its order."""
    tables = [(f"a.b.v{version}", 101 if version == 1 else 91) for version in versions]
    told = [("Käse & b+c.Sorten (alt)", 2), ("a.none", 0), *tables, ("a.v", None)]
    return [(f"{into}{name}", "done", rows) for name, rows in told]


def check_registered(abroad: Abroad, versions: Sequence[int]) -> None:
    """Fail unless everything comes in where it is, listed page by page, with history, refs, deletes and specs; DuckDB goes on with it."""
    report = abroad.ferry.bring("import", abroad.uri, mode="register", property=["rest-page-size=1"])
    assert describe(report) == list_done(versions), report.describe()
    assert [one.snapshots for one in report.moved] == [1, 0, *(2 if version == 1 else 5 for version in versions), 0]
    for version in versions:
        refs = {"main"} if version == 1 else {"dev", "main", "old"}
        assert abroad.ferry.load_here("a%1Fb", f"v{version}")["refs"].keys() == refs
        for ref in refs:
            at = f" VERSION AS OF '{ref}'"
            assert read(abroad, f"{{h}}.a.b.v{version}", at) == read(abroad, f"{{o}}.a.b.v{version}", at)
    assert abroad.run("SELECT * FROM {h}.a.v") == [{"one": 1}]
    again = abroad.ferry.bring("import", abroad.uri, mode="register")
    assert {one.verdict for one in again.moved} == {"already-there"}, again.describe()
    abroad.ferry.ask_duckdb(f'INSERT INTO lake."a␟b".v{versions[-1]} (id) VALUES (7000)')
    assert read(abroad, f"{{h}}.a.b.v{versions[-1]}")[-1]["id"] == 7000


def check_copies(abroad: Abroad, versions: Sequence[int]) -> None:
    """Fail unless copies come in, and go out to where Spark and PyIceberg find the same rows through that catalog."""
    report = abroad.ferry.bring("import", abroad.uri, mode="copy", into="in")
    assert describe(report) == list_done(versions, "in."), report.describe()
    names = [f"in.{name}" for name in ("a.none", "a.v", "Käse & b+c.Sorten (alt)", *(f"a.b.v{version}" for version in versions))]
    out = abroad.ferry.bring("export", abroad.uri, *names, into="back")
    assert describe(out) == list_done(versions, "back.in."), out.describe()
    for version in versions:
        assert read(abroad, f"{{o}}.back.`in`.a.b.v{version}") == read(abroad, f"{{o}}.a.b.v{version}")
    assert abroad.run("SELECT * FROM {o}.back.`in`.a.v") == [{"one": 1}]
    abroad.ferry.ask_duckdb("CREATE SCHEMA lake.own")
    abroad.ferry.ask_duckdb("CREATE TABLE lake.own.t AS SELECT range AS i FROM range(3)")
    assert describe(abroad.ferry.bring("export", abroad.uri, "own.t")) == [("own.t", "done", 3)]
    with closing(RestCatalog("other", uri=abroad.uri)) as catalog:
        assert catalog.load_table("own.t").scan().to_arrow().to_pydict() == {"i": [0, 1, 2]}
    again = abroad.ferry.bring("export", abroad.uri, *names, into="back")
    assert {one.verdict for one in again.moved} == {"already-there"}, again.describe()


@pytest.mark.long
def test_tables_of_another_maker_come_and_go(abroad: Abroad) -> None:
    """By both modes, and out again."""
    fill(abroad, (3,))
    check_registered(abroad, (3,))
    check_copies(abroad, (3,))


@pytest.mark.long
def test_tables_of_older_versions_come_and_go(abroad: Abroad) -> None:
    """The same of the versions 1 and 2."""
    fill(abroad, (1, 2))
    check_registered(abroad, (1, 2))
    check_copies(abroad, (1, 2))


@pytest.fixture
def on_s3(stack: SharedStack, spark: Spark, tmp_path: Path) -> Iterator[Abroad]:
    """Both catalogs with their files on S3; the other one gives its keys along with each table."""
    with make_lake(stack) as lake:
        store, place = lake.store, f"s3://{lake.store.bucket}/{lake.name}-other"
        keys = {"s3.endpoint": store.endpoint, "client.region": store.region, "s3.path-style-access": "true"}
        keys |= {"s3.access-key-id": store.access_key_id, "s3.secret-access-key": store.secret_access_key}
        files = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", **keys}
        lent = {"warehouse": place, "include-credentials": "true", **files}
        with (
            serve(make_settings(lake, allowed_locations=(place,))) as server,
            serve_reference(tmp_path / "reference.log", lent) as reference,
        ):
            served = Served(lake, server)
            ferry = Ferry(served, spark, served.spark(spark).catalog, tmp_path, "")
            yield know(ferry, reference, {f".{name}": text for name, text in files.items()})


@pytest.mark.long
@pytest.mark.parametrize("mode", ["register", "copy"])
def test_files_on_s3(on_s3: Abroad, mode: str) -> None:
    """The keys come from the other catalog, and where the store is from the properties."""
    store = on_s3.ferry.served.lake.store
    at = {"property": [f"s3.endpoint={store.endpoint}", f"client.region={store.region}"]}
    on_s3.run("CREATE NAMESPACE {o}.a", f"CREATE TABLE {{o}}.a.t ({COLUMNS}) USING iceberg", f"INSERT INTO {{o}}.a.t {ROWS}")
    report = on_s3.ferry.bring("import", on_s3.uri, mode=mode, **at)
    assert describe(report) == [("a.t", "done", 100)], report.describe()
    out = on_s3.ferry.bring("export", on_s3.uri, into="back", **at)
    assert describe(out) == [("back.a.t", "done", 100)], out.describe()
    assert read(on_s3, "{o}.back.a.t") == read(on_s3, "{o}.a.t")


@pytest.mark.long
def test_what_the_other_catalog_cannot_open_stops_nothing(abroad: Abroad) -> None:
    """A namespace that its server lists and refuses in a path is told, and so are names that differ by case alone."""
    abroad.run("CREATE NAMESPACE {o}.ok", "CREATE TABLE {o}.ok.t (x INT) USING iceberg", "INSERT INTO {o}.ok.t VALUES (1)")
    abroad.run("CREATE TABLE {o}.ok.Twin (x INT) USING iceberg", "CREATE TABLE {o}.ok.twin (x INT) USING iceberg")
    with closing(RestCatalog("other", uri=abroad.uri)) as catalog:
        catalog.create_namespace(("with/slash",))
    report = abroad.ferry.bring("import", abroad.uri, mode="copy")
    assert sorted(describe(report)) == [
        ("ok.Twin", "failed", None),
        ("ok.t", "done", 1),
        ("ok.twin", "failed", None),
        ("with/slash", "failed", None),
    ], report.describe()
    assert "cannot be listed" in next(one.message for one in report.moved if one.subject == "with/slash")
    assert describe(abroad.ferry.bring("import", abroad.uri, "ok.Twin", mode="copy")) == [("ok.Twin", "done", 0)]
