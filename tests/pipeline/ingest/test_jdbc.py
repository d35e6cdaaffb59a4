"""Databases as sources: new rows by a column that grows, or everything as it is; one state, each row once, whatever ends the process."""

import sqlite3
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from psycopg import Connection, connect, sql
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql.types import StringType, StructField, StructType, TimestampNTZType

from duckicelake.errors import BadRequest, CatalogError
from duckicelake.pipeline.common.failures import SparkFailed
from duckicelake.pipeline.common.storage import NoSource
from duckicelake.pipeline.ingest.database_source import JdbcReading, build_bookmark, choose_options, name_database, read_address
from duckicelake.pipeline.ingest.options import Batch, Changed, Format, IngestMode, IngestOptions, Status, read_options
from tests.cli.test_commands import settings_for
from tests.pipeline.ingest.doomed import Doom, run_doomed
from tests.pipeline.ingest.mill import TABLE, Mill
from tests.pipeline.ingest.test_follow import until_there_is_no_more
from tests.support.commands import run
from tests.support.spark import CALM_OPTIONS

CALL: Mapping[str, Any] = {
    **{"mode": "append", "evolve": "fail", "changed": "refuse", "schema": None, "partition_by": "", "sort_by": "", "key": ""},
    **{"order_by": None, "max_quarantined": None, "form": "auto", "option": [], "properties": None, "environment": {}},
}
NEW = {"incremental_by": "id"}


class Shop:
    """A schema of its own in the lake's Postgres, with orders."""

    def __init__(self, mill: Mill) -> None:
        self.conn: Connection = connect(mill.served.lake.dsn, autocommit=True)
        mill.served.lake.opened.callback(self.conn.close)
        self.conn.execute("CREATE SCHEMA shop")
        self.conn.execute("CREATE TABLE shop.orders (id bigint, made timestamp, total numeric(9,2), note text)")
        place = conninfo_to_dict(mill.served.lake.dsn)
        self.uri = f"jdbc:postgresql://{place['host']}:{place['port']}/{place['dbname']}"
        self.login = {"user": str(place["user"]), "password": str(place["password"])}
        self.reading = self.login | {"dbtable": "shop.orders"}

    def add(self, *ids: int) -> None:
        """Rows of these numbers."""
        for number in ids:
            self.conn.execute("INSERT INTO shop.orders VALUES (%s, '2026-03-01 12:00:00.5', 1.25, 'n')", [number])

    def options(self, **more: Any) -> dict[str, Any]:
        """Options of the job that takes the orders."""
        return {"source": self.uri, "reading": self.reading} | more


@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_new_rows_of_a_database_are_taken_once(mill: Mill) -> None:
    """Those counted are written; a run that was stopped took nothing; rows that nobody can place stop the run; no secret is told."""
    shop = Shop(mill)
    shop.add(1, 2)
    first = mill.run(**shop.options(**NEW))
    assert (first.rows_in, first.rows_out, first.files) == (2, 2, 0)
    assert mill.rows(columns="id, made::VARCHAR, total::VARCHAR, note")[0] == (1, "2026-03-01 12:00:00.5", "1.25", "n")
    assert mill.run(**shop.options(**NEW)).status == Status.nothing_new
    shop.add(3, 2**40)

    def stop(step: str) -> None:
        if step == "publish":
            raise KeyboardInterrupt

    def grow(step: str) -> None:
        if step == "write raw.trips":
            shop.add(2**41)

    with pytest.raises(KeyboardInterrupt):
        mill.run(**shop.options(**NEW), tell=stop)
    second = mill.run(**shop.options(**NEW), tell=grow)
    assert (second.status, second.rows_out) == (Status.done, 2)
    assert mill.rows(columns="id") == [(1,), (2,), (3,), (2**40,)]
    assert mill.run(**shop.options(**NEW)).rows_out == 1
    name = f"{shop.uri}#shop.orders"
    ledger = mill.rows("trips__ingested", "uri, watermark_column, watermark::BIGINT, rows")
    assert ledger == [(name, "id", 2, 2), (name, "id", 2**40, 2), (name, "id", 2**41, 1)]
    shop.conn.execute("INSERT INTO shop.orders VALUES (NULL, NULL, NULL, NULL)")
    with pytest.raises(BadRequest, match="1 rows of .* have no id"):
        mill.run(**shop.options(**NEW))
    with pytest.raises(SparkFailed, match="password authentication failed") as raised:
        mill.run(**shop.options(**NEW, reading=shop.reading | {"password": "not-the-password"}))
    assert "not-the-password" not in str(raised.value)
    assert shop.login["password"] not in "".join([*mill.told, first.format_json(), second.format_json()])
    assert mill.list_refs("trips") == mill.list_refs("trips__ingested") == ["main"]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
@pytest.mark.parametrize(
    ("column", "greatest"),
    [
        pytest.param("timestamptz", "infinity", id="infinity"),
        pytest.param("date", "infinity", id="day", marks=pytest.mark.long),
    ],
)
def test_infinity_is_no_bookmark(mill: Mill, column: str, greatest: str) -> None:
    """The database would call its row new in every run, and later ones not at all: nothing is taken, and no table made."""
    shop = Shop(mill)
    shop.conn.execute(sql.SQL("CREATE TABLE shop.w (k {}, v int)").format(sql.SQL(column)))
    shop.conn.execute("INSERT INTO shop.w VALUES ('2026-01-01', 1), (%s, 2)", [greatest])
    options = shop.options(reading=shop.login | {"dbtable": "shop.w"}, incremental_by="k")
    # Spark 3.5 has no number for such a moment.
    with pytest.raises(CatalogError, match="1 rows of .* have no k, or one that has no place|: long overflow"):
        mill.run(**options)
    assert mill.served.server.get("namespaces/raw/tables/trips").status == 404
    shop.conn.execute("UPDATE shop.w SET k = '2026-01-02' WHERE v = 2")
    assert mill.run(**options).rows_out == 2
    shop.conn.execute("INSERT INTO shop.w VALUES ('2026-01-03', 3)")
    assert mill.run(**options).rows_out == 1
    assert mill.rows(columns="v") == [(1,), (2,), (3,)]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
@pytest.mark.parametrize("parts", [{}, {"partitionColumn": "v", "lowerBound": "0", "upperBound": "4", "numPartitions": "2"}])
def test_digits_that_spark_cuts_are_no_bookmark(mill: Mill, parts: dict[str, str]) -> None:
    """A number without a scale, and one of which a narrower type was asked for; what fits is taken once."""
    shop = Shop(mill)
    shop.conn.execute("CREATE TABLE shop.w (k numeric, v int)")
    shop.conn.execute("INSERT INTO shop.w VALUES (0.5, 1), (1.1234567890123456781, 2)")
    reading = shop.login | parts | {"dbtable": "shop.w"}
    options = shop.options(reading=reading, incremental_by="k")
    with pytest.raises(BadRequest, match="more than 1.123456789012345678 in k, which Spark reads as 1.123456789012345678"):
        mill.run(**options)
    shop.conn.execute("UPDATE shop.w SET k = 1.75 WHERE v = 2")
    with pytest.raises(BadRequest, match="more than 1.7 in k, which Spark reads as 1.7"):
        narrow = {"dbtable": "(SELECT k - 0.01 AS k, v FROM shop.w) x", "customSchema": "k DECIMAL(9,1)"}
        mill.run(**options | {"reading": reading | narrow})
    assert mill.run(**options).rows_out == 2
    assert mill.run(**options).status == Status.nothing_new


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
@pytest.mark.parametrize("step", range(7))
def test_a_killed_look_into_a_database_is_taken_again(mill: Mill, step: int) -> None:
    """At each step: list, two branches, count, two writes, publish, published."""
    shop = Shop(mill)
    shop.add(1, 2)
    mill.run(**shop.options(**NEW))
    shop.add(3, 4)
    told = run_doomed(Doom(asdict(mill.served.rest_catalog()), shop.uri, str(TABLE), step + 1, reading=shop.reading, incremental_by="id"))
    assert len(told) == step + 2
    assert mill.run(**shop.options(**NEW)).status == (Status.nothing_new if told[-1] == "published" else Status.done)
    assert mill.rows(columns="id") == [(1,), (2,), (3,), (4,)]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_everything_is_appended_once(mill: Mill) -> None:
    """As it is, then never again unless it is asked for; updated, as often as one likes."""
    shop = Shop(mill)
    shop.add(1, 2)
    query = shop.login | {"query": "SELECT id, note FROM shop.orders WHERE id < 10"}
    mill.run(source=shop.uri, reading=query)
    for options in ({}, NEW):
        with pytest.raises(BadRequest, match=r"was taken whole before \(run .*its rows would come twice"):
            mill.run(source=shop.uri, reading=query, **options)
    assert mill.run(source=shop.uri, reading=query, changed=Changed.skip).status == Status.nothing_new
    assert mill.run(source=shop.uri, reading=query, changed=Changed.take).rows_out == 2
    assert mill.rows(columns="id") == [(1,), (1,), (2,), (2,)]
    other = TABLE.with_suffix("_2")
    for note in ("x", "y"):
        shop.conn.execute("UPDATE shop.orders SET note = %s WHERE id = 1", [note])
        mill.run(source=shop.uri, reading=query, table=other, mode=IngestMode.upsert, key=("id",))
        assert mill.rows("trips_2") == [(1, note), (2, "n")]
    dimension = {"table": TABLE.with_suffix("_3"), "mode": IngestMode.scd2, "key": ("id",), "order_by": "made"}
    mill.run(**shop.options(**dimension))
    shop.conn.execute("UPDATE shop.orders SET note = 'z', made = made + interval '1 day' WHERE id = 1")
    assert mill.run(**shop.options(**dimension)).rows_out == 1
    assert mill.rows("trips_3", "id, note, is_current") == [(1, "y", False), (1, "z", True), (2, "n", True)]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_a_database_is_followed_before_it_has_rows(mill: Mill) -> None:
    """The first look makes the table; those that find nothing commit nothing, and the next one waits; then each takes what is new."""
    shop, pauses = Shop(mill), list[float]()
    going = until_there_is_no_more([lambda: None, lambda: shop.add(1, 2), lambda: shop.add(3)])

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        return going(seconds)

    done, looks = mill.follow(wait, options=shop.options(**NEW), poll_seconds=7.0, max_batches=4)
    assert [(look.batches, look.rows_in, look.rows_out) for look in looks] == [(1, 0, 0), (2, 2, 2), (3, 3, 3)]
    assert pauses == [0, 7, 7, 0, 7, 0, 7]
    assert (done.status, done.failures) == (Status.done, 0)
    assert mill.rows("trips__ingested", "watermark_column, watermark::BIGINT, rows") == [("id", 2, 2), ("id", 3, 1), ("id", None, 0)]
    assert mill.rows(columns="id") == [(1,), (2,), (3,)]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
@pytest.mark.parametrize("mode", [IngestMode.append, IngestMode.upsert])
def test_what_is_read_whole_and_has_no_rows_is_taken_once(mill: Mill, mode: IngestMode) -> None:
    """Until it has some, which come in then; and once more when it has none any more, if it is read each time."""
    shop = Shop(mill)
    options = shop.options(mode=mode, key=("id",) if mode is IngestMode.upsert else ())

    def run_twice() -> list[tuple[Status, int]]:
        return [(done.status, done.rows_out) for done in (mill.run(**options), mill.run(**options))]

    assert run_twice() == [(Status.done, 0), (Status.nothing_new, 0)]
    shop.add(1)
    assert mill.run(**options).rows_out == 1
    shop.conn.execute("DELETE FROM shop.orders")
    if mode is IngestMode.upsert:
        assert run_twice() == [(Status.done, 0), (Status.nothing_new, 0)]
    else:
        with pytest.raises(BadRequest, match="was taken whole before"):
            mill.run(**options)
    assert mill.rows(columns="id") == [(1,)]
    assert mill.rows("trips__ingested", "rows") == [(0,)] * (2 if mode is IngestMode.upsert else 1) + [(1,)]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_parts_are_of_one_state(mill: Mill) -> None:
    """A row that moves between two parts while they are read is in one of them; what comes meanwhile is taken by the next run."""
    shop = Shop(mill)
    shop.add(*range(100))
    parts = {"partitionColumn": "id", "lowerBound": "0", "upperBound": "100", "numPartitions": "4"}
    # Whoever reads a part first lets a row leave it for the last one and another one come.
    move = "UPDATE shop.orders SET id = id + 1000 WHERE id < 10 AND (SELECT count(*) FROM shop.orders WHERE id >= 1000) < 5"
    shop.conn.execute(sql.SQL("CREATE FUNCTION shop.move() RETURNS void LANGUAGE sql AS {}").format(move))
    reading = shop.reading | parts | {"sessionInitStatement": "SELECT 1"}
    with JdbcReading(mill.spark.session, "x", choose_options(shop.uri, reading))._sharing() as shared:  # pyright: ignore[reportPrivateUsage]
        shop.conn.execute("SELECT shop.move()")
        shop.add(500)
        assert shared.load().count() == 100
        assert shared.load().where("id >= 100").count() == 0
    done = mill.run(**shop.options(**NEW, reading=reading))
    assert done.rows_out == 101
    with pytest.raises(CatalogError, match="password authentication failed|no password supplied"):
        mill.run(**shop.options(reading=reading | {"password": "wrong"}, table=TABLE.with_suffix("_2")))


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_new_rows_are_known_by_a_timestamp(mill: Mill) -> None:
    """Each run takes what is new; rows without a key are quarantined; what is not there is named."""
    shop = Shop(mill)
    shop.add(1)
    shop.conn.execute("INSERT INTO shop.orders VALUES (NULL, '2026-03-02', 1, 'bad')")
    options = shop.options(incremental_by="made", mode=IngestMode.upsert, key=("id",))
    done = mill.run(**options)
    assert (done.rows_in, done.rows_out, done.rows_quarantined) == (2, 1, 1)
    shop.conn.execute("INSERT INTO shop.orders VALUES (1, '2026-03-02 00:00:00.000001', 9, 'new')")
    assert mill.run(**options).rows_in == 1
    assert mill.rows(columns="id, note") == [(1, "new")]
    for change, message in (({"dbtable": "shop.none"}, "shop.none"), ({"driver": "org.example.None"}, "org.example.None")):
        with pytest.raises(SparkFailed, match=message):
            mill.run(**shop.options(reading=shop.reading | change, table=TABLE.with_suffix("_2")))
    with pytest.raises(BadRequest, match="has no column nothing"):
        mill.run(**shop.options(incremental_by="nothing", table=TABLE.with_suffix("_2")))


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_sqlite_has_whole_integers(mill: Mill, tmp_path: Path) -> None:
    """64 bits, whatever the column says; a file that is not there is no empty database."""
    with sqlite3.connect(tmp_path / "shop.db") as conn:
        conn.execute("CREATE TABLE orders (id INTEGER, note TEXT, price REAL)")
        conn.execute("INSERT INTO orders VALUES (?, 'a', 1.5), (2, NULL, NULL)", [2**40])
    conn.close()
    with pytest.raises(NoSource, match="there is no .*other.db"):
        mill.run(source=f"jdbc:sqlite:{tmp_path}/other.db", reading={"dbtable": "orders"}, **NEW)
    assert not (tmp_path / "other.db").exists()
    mill.run(source=f"jdbc:sqlite:{tmp_path}/shop.db", reading={"dbtable": "orders"}, **NEW)
    assert mill.rows() == [(2, None, None), (2**40, "a", 1.5)]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_the_command_takes_the_password_from_elsewhere(mill: Mill, tmp_path: Path) -> None:
    """The environment, or a file; it is in no output."""
    shop = Shop(mill)
    shop.add(1)
    settings = {**settings_for(mill.served.lake, port=str(mill.served.server.port)), "JDBC_USER": shop.login["user"]}
    arguments = ["pipeline", "ingest", shop.uri, "raw.trips", "--option", "dbtable=shop.orders", "--incremental-by", "id", *CALM_OPTIONS]
    wrong = run(tmp_path, *arguments, settings=settings | {"JDBC_PASSWORD": "not-the-password"})
    assert (wrong.status, "not-the-password" in wrong.out + wrong.err) == (1, False)
    (tmp_path / "login.toml").write_text(f'password = "{shop.login["password"]}"\n')
    done = run(tmp_path, *arguments, "--properties", "login.toml", "--report", "r.json", settings=settings)
    assert done.status == 0, done.err
    assert shop.login["password"] not in done.out + done.err + (tmp_path / "r.json").read_text()
    assert mill.rows(columns="id") == [(1,)]


@pytest.mark.parametrize(
    ("source", "given", "message"),
    [
        pytest.param("jdbc:postgresql://h/d?user=a&password=hush", {}, "a password in SOURCE", id="in the URL"),
        pytest.param("jdbc:postgresql://a:hush@h/d", {}, "a password in SOURCE", id="before the host"),
        pytest.param("ftp://a:hush@h/d.csv", {}, "a password in SOURCE", id="of a file"),
        pytest.param("s3://a:hu/sh@b/d", {}, "a password in SOURCE", id="of a bucket"),
        pytest.param("jdbc:sqlserver://h;databaseName=d;password=hush", {}, "a password in SOURCE", id="behind a semicolon"),
        pytest.param("jdbc:oracle:thin:a/hush@h", {}, "a password in SOURCE", id="Oracle's way"),
        pytest.param("jdbc:mysql://address=(host=h)(password=hush)/d", {}, "a password in SOURCE", id="MySQL's way"),
        pytest.param("jdbc:db2://h:50000/d:user=a;password=hush;", {}, "a password in SOURCE", id="Db2's way"),
        pytest.param("jdbc:postgresql://h/d", {"option": ["password=hush"]}, "--option password", id="option"),
        pytest.param("s3://b/x", {"option": ["s3.secret-access-key=hush"]}, "--option s3.secret-access-key", id="of S3"),
        pytest.param("jdbc:postgresql://h/d", {"form": "csv"}, "--format is that of files", id="format"),
        pytest.param("x.csv", {"incremental_by": "id"}, "belongs to databases", id="files"),
    ],
)
def test_a_wrong_call_is_refused(source: str, given: dict[str, Any], message: str) -> None:
    """Secrets have no place where others see them, and are not repeated."""
    with pytest.raises(BadRequest, match=message) as raised:
        read_options(source, "a.b", {**CALL, **given})
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "host", "port", "dbname"),
    [
        pytest.param("//h/d", "h", "5432", "d", id="no port"),
        pytest.param("d", "localhost", "5432", "d", id="no host"),
        pytest.param("///d", "localhost", "5432", "d", id="an empty host"),
        pytest.param("//a:1,b/my%20db?user=me", "a,b", "1,5432", "my db", id="two hosts"),
        pytest.param("//[::1]/d", "::1", "5432", "d", id="colons"),
        pytest.param("//[::1]:5,[fe80::2]/d", "::1,fe80::2", "5,5432", "d", id="colons and ports"),
    ],
)
def test_an_address_is_read_as_its_driver_does(url: str, host: str, port: str, dbname: str) -> None:
    """For the one state of the database that a parallel read has."""
    found = read_address({"url": f"jdbc:postgresql:{url}", "password": "hush"})
    assert (found["host"], found["port"], found["dbname"], found["password"]) == (host, port, dbname, "hush")


def test_what_the_options_become(tmp_path: Path) -> None:
    """Those of the call are stronger than the file's, these than the environment's; the ledger's name has neither who asks nor how."""
    (tmp_path / "p.toml").write_text('user = "file"\nfetchsize = "5"\n')
    environment = {"JDBC_USER": "env", "JDBC_PASSWORD": "hush"}
    more = {"properties": tmp_path / "p.toml", "option": ["query=SELECT 1", "fetchsize=7"], "environment": environment}
    options = read_options("jdbc:postgresql://h/d?sslmode=require", "a.b", {**CALL, **more})
    assert options.reading == {"user": "file", "password": "hush", "query": "SELECT 1", "fetchsize": "7"}
    assert "hush" not in repr(options)
    assert options.hide("it was hush, hush") == "it was ***, ***"
    how = choose_options(options.source, options.reading)
    assert (how["dbtable"], how["driver"], how["fetchsize"]) == ("(SELECT 1) duckicelake", "org.postgresql.Driver", "7")
    assert name_database(options.source, options.reading) == "jdbc:postgresql://h/d#SELECT 1"
    for reading in ({}, {"dbtable": "a", "query": "b"}):
        with pytest.raises(BadRequest, match="dbtable=TABLE, or"):
            choose_options("jdbc:sqlite:x", reading)
    with pytest.raises(BadRequest, match="no driver is known for jdbc:mysql: give its jar"):
        choose_options("jdbc:mysql://h/d", {"dbtable": "a"})
    assert choose_options("jdbc:mysql://h/d", {"dbtable": "a", "driver": "com.example.D"})["driver"] == "com.example.D"
    with pytest.raises(BadRequest, match="is string: rows are new by whole numbers"):
        build_bookmark(StructType([StructField("name", StringType())]), "NAME", "x")
    with pytest.raises(BadRequest, match="--incremental-by says which"):
        IngestOptions("jdbc:sqlite:x", TABLE, form=Format.jdbc, batch=Batch("x", 1, 1, 1))


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("jdbc:postgresql://h/d?user=a&currentSchema=b", "jdbc:postgresql://h/d;currentSchema=b#t"),
        ("jdbc:postgresql://h/d?currentSchema=c&user=a", "jdbc:postgresql://h/d;currentSchema=c#t"),
        ("jdbc:sqlserver://h;databaseName=A;user=a", "jdbc:sqlserver://h;databaseName=A#t"),
        ("jdbc:postgresql://h/d", "jdbc:postgresql://h/d#t"),
    ],
)
def test_a_source_is_told_from_others_by_its_whole_url(url: str, name: str) -> None:
    """Databases and schemas may stand behind the path; they do not share what was taken."""
    assert name_database(url, {"dbTable": "t"}) == name


@pytest.mark.parametrize(("url", "is_refused"), [("jdbc:sqlite:/x.db#t", True), ("jdbc:postgresql://h/d#t", False)])
def test_times_of_sqlite_are_no_bookmarks(url: str, is_refused: bool) -> None:
    """SQLite compares them as the texts or numbers that they are stored as."""
    columns = StructType([StructField("at", TimestampNTZType())])
    with pytest.raises(BadRequest, match="SQLite") if is_refused else nullcontext():
        build_bookmark(columns, "at", url)
