"""Tables that leave out columns that Iceberg cannot represent: stock clients read and write the rest, and DuckDB has everything."""

import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.exceptions import BadRequestError, RESTError
from pyiceberg.types import DateType

from duckicelake.catalog import snapshot_building
from duckicelake.commands.check import list_findings
from duckicelake.embedded.home import open_home
from duckicelake.translate.unreadable_columns import PROPERTY
from tests.rest.serving import Answer, make_settings
from tests.rest.writing.refs.maintenance import expire_everything
from tests.support.readers import DuckDBIcebergReader, PyIcebergReader, Served
from tests.support.spark import Spark, SparkRefused
from tests.support.tiers import long_after

IDENT = ("main", "t")
FLUSH = "CALL ducklake_flush_inlined_data('lake')"
TABLE = "CREATE TABLE t (i INTEGER, u UBIGINT, d INTERVAL, s STRUCT(a INTEGER, b UBIGINT))"
ROWS = "INSERT INTO t SELECT n, 18446744073709551615 - n, INTERVAL 1 DAY * n, {{'a': n, 'b': n}} FROM range({}, {}) r(n)"
VALUES = "SELECT i, u, d, s.b FROM t ORDER BY i"


def set_property(served: Served, value: str, *requirements: object, more: Mapping[str, str] | None = None) -> Answer:
    """Ask for the property, and `more` ones, as a client without the table's metadata can."""
    body = {"requirements": requirements, "updates": [{"action": "set-properties", "updates": {PROPERTY: value, **(more or {})}}]}
    path = "namespaces/main/tables/t"
    return served.server.ask("POST", path, {"content-type": "application/json"}, json.dumps(body).encode())


def check_snapshots(conn: DuckDBPyConnection, reader: PyIcebergReader, *others: DuckDBIcebergReader) -> None:
    """At each snapshot, the clients read DuckDB's rows in the columns that there are for them."""
    table = reader.catalog.load_table(IDENT)
    for snapshot in table.snapshots():
        shown = [field.name for field in table.scan(snapshot_id=snapshot.snapshot_id).projection().fields]
        expected = conn.execute(f"SELECT {', '.join(shown)} FROM t AT (VERSION => {snapshot.snapshot_id}) ORDER BY i").to_arrow_table()
        for each in (reader, *others):
            assert each.read(IDENT, snapshot.snapshot_id).sort_by("i").to_pylist() == expected.to_pylist(), (
                each.name,
                snapshot.snapshot_id,
            )


@pytest.mark.whole
def test_the_rest_of_a_table_is_read_and_written(served: Served) -> None:
    """Inlined rows, files of DuckDB and of PyIceberg, changes of columns and deletes by both sides; hidden values stay as they are."""
    conn, pyiceberg, extension = served.lake.duckdb(), served.pyiceberg(), served.duckdb_iceberg()
    conn.execute(TABLE)
    conn.execute(ROWS.format(0, 3))
    with pytest.raises(RESTError, match="UnsupportedOperationException"):
        pyiceberg.catalog.load_table(IDENT)
    answer = set_property(served, "hide")
    assert answer.status == 200
    assert [field["name"] for field in answer.json["metadata"]["schemas"][-1]["fields"]] == ["i"]
    conn.execute(ROWS.format(3, 30))
    conn.execute("ALTER TABLE t SET PARTITIONED BY (u); ALTER TABLE t SET SORTED BY (d, i)")
    conn.execute(ROWS.format(30, 42))
    check_snapshots(conn, pyiceberg, extension)
    pyiceberg.catalog.load_table(IDENT).append(pa.table({"i": pa.array([42, 43], pa.int32())}))
    with pyiceberg.catalog.load_table(IDENT).update_schema() as update:
        update.add_column("day", DateType())
        update.rename_column("i", "n")
    with pyiceberg.catalog.load_table(IDENT).update_schema() as update:
        update.rename_column("n", "i")
    extension.conn.execute("DELETE FROM ice.main.t WHERE i IN (1, 40)")
    assert conn.execute(FLUSH) is not None
    check_snapshots(conn, pyiceberg, extension)
    found = conn.execute(VALUES).fetchall()
    expected = conn.execute(
        "SELECT n::INTEGER, (18446744073709551615 - n)::UBIGINT, INTERVAL 1 DAY * n, n::UBIGINT FROM range(42) r(n) WHERE n NOT IN (1, 40)"
        " UNION ALL SELECT n, NULL, NULL, NULL FROM range(42, 44) r(n) ORDER BY 1"
    ).fetchall()
    assert found == expected
    assert conn.execute("SELECT count(*) FROM t WHERE u IS NULL").fetchall() == [(2,)]
    keys = served.lake.psycopg().execute("SELECT expression FROM ducklake_sort_expression ORDER BY sort_id DESC, sort_key_index").fetchall()
    assert [key for (key,) in keys[:2]] == ["d", '"i"']


@pytest.mark.whole
def test_no_rewriting_loses_hidden_values(served: Served) -> None:
    """A client's copy of DuckDB's rows would lack them. Its own files have none, so it may rewrite those."""
    conn, pyiceberg = served.lake.duckdb(), served.pyiceberg()
    conn.execute(TABLE)
    set_property(served, "hide")
    table = pyiceberg.catalog.load_table(IDENT)
    table.append(pa.table({"i": pa.array([100, 101], pa.int32())}))
    table.delete("i = 100")
    conn.execute(ROWS.format(0, 3))
    for _ in ("inlined", "flushed"):
        with pytest.raises(BadRequestError, match="would lose their values of 'u', 'd', 's'"):
            pyiceberg.catalog.load_table(IDENT).delete("i = 1")
        conn.execute(FLUSH)
    assert conn.execute("SELECT i, u IS NULL FROM t ORDER BY i").fetchall() == [(0, False), (1, False), (2, False), (101, True)]
    pyiceberg.catalog.load_table(IDENT).delete("i < 10")
    assert conn.execute("SELECT i FROM t").fetchall() == [(101,)]


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize(("kind", "value"), long_after(1, [("VARIANT", "{'a': n}::VARIANT"), ("UBIGINT", "n::UBIGINT")]))
def test_spark_reads_and_writes_the_rest(served: Served, spark: Spark, kind: str, value: str, tmp_path: Path) -> None:
    """Files of DuckDB; `check` finds nothing. Copy-on-write is refused, and deletes without copies are not."""
    conn, reader = served.lake.duckdb(), served.spark(spark)
    conn.execute(f"CREATE TABLE t (i INTEGER, v {kind}); INSERT INTO t SELECT n, {value} FROM range(30) r(n)")
    assert set_property(served, "hide").status == 200
    (settings,) = make_settings(served.lake).lakes()
    assert list_findings(settings, open_home(tmp_path / "home")) == []
    name = reader.sql_name(IDENT)
    assert spark.arrow(f"SELECT count(*) AS n, sum(i) AS s FROM {name}").to_pylist() == [{"n": 30, "s": 435}]
    spark.arrow(f"INSERT INTO {name} VALUES (100)")
    with pytest.raises(SparkRefused, match="would lose their values of 'v'"):
        spark.arrow(f"DELETE FROM {name} WHERE i = 3")
    spark.arrow(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    spark.arrow(f"DELETE FROM {name} WHERE i = 3")
    expected = [(n, True) for n in range(30) if n != 3] + [(100, False)]
    assert conn.execute("SELECT i, v IS NOT NULL FROM t ORDER BY i").fetchall() == expected
    assert sorted(row["i"] for row in reader.read(IDENT).to_pylist()) == [n for n, _ in expected]


def test_a_hidden_not_null_column_refuses_rows_and_a_property_that_stays_is_refused(served: Served) -> None:
    """The messages say what to do; the table stays as it is, and DuckDB goes on."""
    conn, pyiceberg = served.lake.duckdb(), served.pyiceberg()
    pyiceberg.catalog.create_table(IDENT, pa.schema([("i", pa.int32())]), properties={PROPERTY: "hide"})
    conn.execute("ALTER TABLE t ADD COLUMN u UBIGINT; INSERT INTO t VALUES (1, 2); ALTER TABLE t ALTER u SET NOT NULL")
    with pytest.raises(BadRequestError, match="'u' of the type uint64 is NOT NULL"):
        pyiceberg.catalog.load_table(IDENT).append(pa.table({"i": pa.array([2], pa.int32())}))
    with pytest.raises(BadRequestError, match="because of 'u'"):
        pyiceberg.catalog.load_table(IDENT).transaction().remove_properties(PROPERTY).commit_transaction()
    with pytest.raises(BadRequestError, match="must be 'refuse' or 'hide'"):
        pyiceberg.catalog.load_table(IDENT).transaction().set_properties({PROPERTY: "no"}).commit_transaction()
    assert pyiceberg.read(IDENT).to_pylist() == [{"i": 1}]
    conn.execute("ALTER TABLE t ALTER u DROP NOT NULL")
    pyiceberg.catalog.load_table(IDENT).append(pa.table({"i": pa.array([2], pa.int32())}))
    assert conn.execute("FROM t ORDER BY i").fetchall() == [(1, 2), (2, None)]


def test_an_unreadable_table_is_asked_to_hide_by_its_uuid(served: Served) -> None:
    """A request that needs more of the table than its uuid is refused as before, and so is one whose table stays unreadable."""
    conn = served.lake.duckdb()
    conn.execute("CREATE TABLE t (u UBIGINT)")
    assert set_property(served, "hide").error == (406, "UnsupportedOperationException")
    conn.execute("ALTER TABLE t ADD COLUMN i INTEGER")
    assert served.server.get("namespaces/main/tables/t").status == 406, "the refused request has changed nothing"
    (uuid,) = served.lake.psycopg().execute("SELECT table_uuid::text FROM ducklake_table WHERE table_name = 't'").fetchone() or ("",)
    other = {"type": "assert-table-uuid", "uuid": "00000000-0000-0000-0000-000000000000"}
    assert set_property(served, "hide", other).error == (409, "CommitFailedException")
    assert set_property(served, "hide", {"type": "assert-current-schema-id", "current-schema-id": 0}).status == 406
    assert set_property(served, "refuse").status == 406
    assert set_property(served, "hide", {**other, "uuid": uuid}).status == 200
    assert set_property(served, "hide").status == 200


COPIES = "would lose their values of '{}'"


def test_rows_from_before_a_column_was_hidden_are_not_rewritten(served: Served) -> None:
    """A client's file has the values of a column that it saw; one from before the column has none, and one from after it became hidden."""
    conn, catalog = served.lake.duckdb(), served.pyiceberg().catalog
    catalog.create_table(IDENT, pa.schema([("i", pa.int32()), ("v", pa.int32()), ("s", pa.struct([("a", pa.int32())]))]))
    rows = [{"i": i, "v": i * 10, "s": {"a": i}} for i in (1, 2)]
    schema = pa.schema([("i", pa.int32()), ("v", pa.int32()), ("s", pa.struct([("a", pa.int32())]))])
    catalog.load_table(IDENT).append(pa.Table.from_pylist(rows, schema))
    conn.execute("ALTER TABLE t ADD COLUMN late UBIGINT")
    assert set_property(served, "hide").status == 200
    catalog.load_table(IDENT).append(pa.Table.from_pylist([{**rows[0], "i": i} for i in (3, 4)], schema))
    catalog.load_table(IDENT).delete("i = 4")
    for change, name in (("ADD COLUMN s.u UBIGINT", "s"), ("ALTER COLUMN v TYPE DOUBLE", "v")):
        conn.execute(f"ALTER TABLE t {change}")
        with pytest.raises(BadRequestError, match="would lose their values of .*" + name):
            catalog.load_table(IDENT).delete("i = 1")
    assert conn.execute("SELECT i, v, s.a FROM t ORDER BY i").fetchall() == [(1, 10, 1), (2, 20, 2), (3, 10, 1)]


def test_a_file_of_ducklakes_that_comes_back_is_not_rewritten(served: Served) -> None:
    """DuckLake has forgotten the file, which a tag kept: its note, which it gets with its new row, makes it no client's file."""
    conn, catalog = served.lake.duckdb(), served.pyiceberg().catalog
    conn.execute("CREATE TABLE t (i INTEGER, u UBIGINT)")
    set_property(served, "hide")
    conn.execute("INSERT INTO t SELECT n, n FROM range(20) r(n)")
    table = catalog.load_table(IDENT)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.manage_snapshots().create_tag(snapshot.snapshot_id, "kept").commit()
    conn.execute("DELETE FROM t")
    expire_everything(conn)
    catalog.load_table(IDENT).manage_snapshots().set_current_snapshot(ref_name="kept").commit()
    with pytest.raises(BadRequestError, match=COPIES.format("u")):
        catalog.load_table(IDENT).delete("i = 1")
    assert conn.execute("SELECT count(*), sum(u) FROM t").fetchall() == [(20, 190)]


@pytest.mark.whole
def test_rows_are_not_replaced_by_two_snapshots_of_one_request(served: Served) -> None:
    """PyIceberg's overwrite deletes whole files in one snapshot, and adds the new rows in the next one. Apart, both are what they say."""
    conn, catalog = served.lake.duckdb(), served.pyiceberg().catalog
    conn.execute("CREATE TABLE t (i INTEGER, u UBIGINT)")
    set_property(served, "hide")
    conn.execute("INSERT INTO t SELECT n, n FROM range(20) r(n)")
    rows = pa.table({"i": pa.array(range(20), pa.int32())})
    with pytest.raises(BadRequestError, match=COPIES.format("u")):
        catalog.load_table(IDENT).overwrite(rows)
    assert conn.execute("SELECT count(u) FROM t").fetchall() == [(20,)]
    catalog.load_table(IDENT).delete("i >= 0")
    catalog.load_table(IDENT).append(rows)
    catalog.load_table(IDENT).overwrite(rows)
    assert conn.execute("SELECT count(*), count(u) FROM t").fetchall() == [(20, 0)]


@pytest.mark.whole
def test_large_numbers_stay_hidden_after_a_clients_change_of_columns(served: Served) -> None:
    """Readers would show 4294967295 as -1: the schema that the client noted is served without the column, at its snapshots too."""
    conn, pyiceberg = served.lake.duckdb(), served.pyiceberg()
    conn.execute("CREATE TABLE t (i INTEGER, v UINTEGER)")
    with pyiceberg.catalog.load_table(IDENT).update_schema() as update:
        update.add_column("j", DateType())
    conn.execute("INSERT INTO t SELECT n, 4294967295, NULL FROM range(30) r(n)")
    assert served.server.get("namespaces/main/tables/t").status == 406
    assert set_property(served, "hide").status == 200
    table = pyiceberg.catalog.load_table(IDENT)
    assert [field.name for field in table.schema().fields] == ["i", "j"]
    check_snapshots(conn, pyiceberg)
    conn.execute("INSERT INTO t VALUES (30, 1, NULL)")
    with pyiceberg.catalog.load_table(IDENT).update_schema() as update:
        update.add_column("k", DateType())
    check_snapshots(conn, pyiceberg)
    assert conn.execute("SELECT count(v) FROM t").fetchall() == [(31,)]


@pytest.mark.parametrize("more", [{"encryption.key-id": "k"}, {"write.data.path": "s3://elsewhere/"}, {"format-version": "3"}, {"a": "b"}])
def test_an_unreadable_table_takes_no_other_property(served: Served, more: dict[str, str]) -> None:
    """What other properties may be is checked on the table's metadata, and there is none."""
    conn = served.lake.duckdb()
    conn.execute("CREATE TABLE t (i INTEGER, u UBIGINT)")
    assert set_property(served, "hide", more=more).error == (406, "UnsupportedOperationException")
    assert served.lake.psycopg().execute("SELECT count(*) FROM ducklake_tag").fetchone() == (0,)
    assert set_property(served, "hide").status == 200


@pytest.mark.whole
def test_an_older_metadata_file_does_not_bring_a_table_back_without_hidden_columns(served: Served) -> None:
    """A table made again from it would have files with values, and no column for them."""
    conn, catalog = served.lake.duckdb(), served.pyiceberg().catalog
    conn.execute("CREATE TABLE t (i INTEGER, u UBIGINT)")
    set_property(served, "hide")
    conn.execute("INSERT INTO t SELECT n, n FROM range(20) r(n)")
    older = catalog.load_table(IDENT).metadata_location
    catalog.load_table(IDENT).append(pa.table({"i": pa.array([20], pa.int32())}))
    body = json.dumps({"name": "t", "metadata-location": older, "overwrite": True}).encode()
    answer = served.server.ask("POST", "namespaces/main/register", {"content-type": "application/json"}, body)
    assert answer.error == (400, "BadRequestException"), answer.body
    assert "leaves out columns" in answer.json["error"]["message"]
    newest = catalog.load_table(IDENT).metadata_location
    catalog.drop_table(IDENT)
    catalog.register_table(IDENT, newest)
    assert conn.execute("SELECT count(*), count(u) FROM t").fetchall() == [(21, 20)]
    newest = catalog.load_table(IDENT).metadata_location
    catalog.drop_table(IDENT)
    expire_everything(conn)
    with pytest.raises(BadRequestError, match="leaves out columns"):
        catalog.register_table(IDENT, newest)


def test_the_property_is_not_set_where_it_does_not_help(served: Served) -> None:
    """Rows in Postgres with a value that no derived file can hold: the request is refused, and changes nothing."""
    conn = served.lake.duckdb()
    conn.execute("CREATE TABLE t (i INTEGER, u UBIGINT, h HUGEINT)")
    conn.execute("INSERT INTO t VALUES (1, 2, 170141183460469231731687303715884105727)")
    answer = set_property(served, "hide")
    assert answer.error == (406, "UnsupportedOperationException")
    assert "'h'" in answer.json["error"]["message"]
    assert served.lake.psycopg().execute("SELECT count(*) FROM ducklake_tag").fetchone() == (0,)
    conn.execute("DROP TABLE t")
    conn.execute("CREATE TABLE t (i INTEGER, u UBIGINT, h HUGEINT)")
    conn.execute("INSERT INTO t VALUES (1, 2, 3)")
    assert set_property(served, "hide").status == 200


def test_a_table_that_hides_large_numbers_is_read_on_from_its_last_load(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that were read before are not read again to find out that they have such numbers."""
    conn = served.lake.duckdb()
    conn.execute("CREATE TABLE t (i INTEGER, v UINTEGER)")
    set_property(served, "hide")
    conn.execute("INSERT INTO t SELECT n, 4294967295 FROM range(30) r(n)")
    assert served.server.get("namespaces/main/tables/t").status == 200
    conn.execute("INSERT INTO t SELECT n, 1 FROM range(30) r(n)")
    monkeypatch.setattr(snapshot_building, "SINCE_THE_BEGINNING", None)
    fields = served.server.get("namespaces/main/tables/t").json["metadata"]["schemas"][-1]["fields"]
    assert [field["name"] for field in fields] == ["i"]
