"""Trino puts rows in, changes and deletes them: DuckDB has the same after each statement, and goes on."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.interop.trino.writing.story import Story
from tests.support.going_on import check_going_on

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("trino")]

TYPES = (
    "id bigint NOT NULL, name varchar, bo boolean, i integer, r real, d double, de decimal(20,3), dy date, ti time(6), ts timestamp(6),"
    " tz timestamp(6) with time zone, vb varbinary, u uuid, a array(integer), m map(varchar, bigint), s row(x integer, y row(z varchar))"
)
VALUES = (
    "SELECT k, 'n' || cast(k % 5 AS varchar), k % 2 = 0, cast(k AS integer), real '0.5' * k, k / 3e0, cast(k * 1.5 AS decimal(20,3)),"
    " date '1969-12-25' + k * interval '1' day, time '01:02:03.000004' + k * interval '1' minute,"
    " timestamp '1969-12-31 23:00:00.000001' + k * interval '1' hour, timestamp '2026-01-01 00:00:00.000 UTC' + k * interval '1' hour,"
    " to_utf8('b' || cast(k AS varchar)), cast('00000000-0000-0000-0000-0000000000' || cast(10 + k AS varchar) AS uuid),"
    " ARRAY[cast(k AS integer), NULL], MAP(ARRAY['k'], ARRAY[k]), CAST(ROW(k, ROW('z')) AS row(x integer, y row(z varchar)))"
    " FROM UNNEST(sequence(0, 19)) AS q(k)"
)
MERGE = (
    "MERGE INTO {t} t USING (VALUES (bigint '6', 'm'), (7, 'gone'), (200, 'new')) s(id, name) ON t.id = s.id"
    " WHEN MATCHED AND s.name = 'gone' THEN DELETE WHEN MATCHED THEN UPDATE SET name = s.name"
    " WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, s.name)"
)
CHANGES = [
    (f"INSERT INTO {{t}} {VALUES}", 20),
    ("INSERT INTO {t} (id, name) VALUES (100, NULL), (101, 'few')", 22),
    ("UPDATE {t} SET name = 'u', a = ARRAY[7] WHERE id < 3", 22),
    ("DELETE FROM {t} WHERE id = 4 OR i = 15", 20),
    (MERGE, 20),
    ("DELETE FROM {t} WHERE id IN (SELECT max(id) FROM {t})", 19),
    ("UPDATE {t} SET id = id + 1000 WHERE name = 'n3'", 19),
]


@pytest.mark.parametrize(
    ("format_version", "parts"),
    [
        pytest.param(2, "", id="v2", marks=pytest.mark.long),
        pytest.param(2, "'bucket(id, 2)', 'truncate(name, 1)'", id="v2, by bucket and text", marks=pytest.mark.long),
        pytest.param(2, "'bo', 'year(dy)', 'month(ts)'", id="v2, by value, year and month", marks=pytest.mark.long),
        pytest.param(3, "'day(tz)', 'bucket(u, 2)'", id="v3, by day and bucket"),
        pytest.param(3, "'hour(ts)'", id="v3, by hour", marks=pytest.mark.long),
    ],
)
def test_rows_of_every_type_come_change_and_go(story: Story, format_version: int, parts: str) -> None:
    """Position deletes in version 2, deletion vectors in version 3; rows move between partitions; the past stays what it was."""
    made = f"format_version = {format_version}, partitioning = ARRAY[{parts}], sorted_by = ARRAY['id DESC NULLS LAST']"
    story.run(f"CREATE TABLE {{t}} ({TYPES}) WITH ({made})")
    for statement, count in CHANGES:
        story.run(statement)
        assert story.check() == count, statement
    formats = dict(story.run('SELECT file_format, content FROM {c}.ns."t$files" WHERE content <> 0'))
    assert formats == {{2: "PARQUET", 3: "PUFFIN"}[format_version]: 1}
    assert len(story.check_past()) == len(CHANGES) + 1
    story.check_going_on()
    story.run("DELETE FROM {t} WHERE id % 2 = 0")
    assert story.check() > 0
    story.run("TRUNCATE TABLE {t}")
    assert story.check() == 0


@pytest.mark.long
def test_many_and_few_rows_are_deleted(story: Story) -> None:
    """Trino writes the path in a dictionary where it stands in many rows, as a length and bytes where it stands in few."""
    story.run("CREATE TABLE {t} AS SELECT k AS id, 'n' || cast(k AS varchar) AS name FROM UNNEST(sequence(1, 5000)) AS q(k)")
    story.run("DELETE FROM {t} WHERE id <= 1000")
    story.run("DELETE FROM {t} WHERE id = 1500")
    story.run("UPDATE {t} SET name = 'x' WHERE id > 4990")
    assert story.check() == 3999
    story.check_going_on()


@pytest.mark.long
def test_whole_partitions_are_deleted_by_metadata(story: Story) -> None:
    """Their files go, and no delete file comes."""
    story.run(
        "CREATE TABLE {t} WITH (partitioning = ARRAY['name']) AS"
        " SELECT k AS id, 'n' || cast(k % 3 AS varchar) AS name FROM UNNEST(sequence(1, 12)) AS q(k)"
    )
    story.run("DELETE FROM {t} WHERE name = 'n1'")
    assert story.check() == 8
    summary = story.load()["snapshots"][-1]["summary"]
    assert (summary["operation"], summary["deleted-data-files"], summary["total-delete-files"]) == ("delete", "1", "0")
    story.run("DELETE FROM {t} WHERE name = 'n0' AND id = 3")
    assert story.check() == 7
    assert len(story.check_past()) == 3


@pytest.mark.long
def test_rows_of_tables_that_duckdb_made(story: Story) -> None:
    """In files and inlined, partitioned and not, under names in both cases: Trino puts rows in, changes, deletes and rewrites them."""
    story.ask('CREATE TABLE {t} ("Id" INTEGER, "When" DATE, small TINYINT, u UINTEGER, s VARCHAR)')
    story.ask('ALTER TABLE {t} SET PARTITIONED BY (year("When"))')
    story.ask("INSERT INTO {t} SELECT range, DATE '2020-01-01' + range::INTEGER * 100, range, range, 'duck' FROM range(20)")
    story.ask("INSERT INTO {t} VALUES (500, DATE '2020-02-02', 1, 1, 'inlined'), (501, NULL, NULL, NULL, NULL)")
    story.run("DELETE FROM {t} WHERE id = 500 OR id = 3")
    story.run("UPDATE {t} SET s = 'trino' WHERE id < 5")
    story.run("INSERT INTO {t} VALUES (100, DATE '2020-05-05', 7, 7, 'trino')")
    story.run('DELETE FROM {t} WHERE year("when") = 2021')
    story.run("ALTER TABLE {t} ADD COLUMN more integer")
    rows = story.ask('SELECT "Id", s, small, more FROM {t} ORDER BY ALL')
    assert rows == story.run("SELECT id, s, small, more FROM {t} ORDER BY 1")
    assert [row[0] for row in rows] == [0, 1, 2, *range(8, 20), 100, 501]
    assert {row[1] for row in rows[:3]} == {"trino"}
    story.run("ALTER TABLE {t} EXECUTE optimize")
    assert story.ask('SELECT "Id", s, small, more FROM {t} ORDER BY ALL') == rows
    check_going_on(story.served, ("ns", "t"))


@pytest.mark.long
def test_rows_go_in_beside_duckdb(story: Story) -> None:
    """Each row of both writers is there once, whoever commits in between."""
    story.run("CREATE TABLE {t} (id integer)")
    beside = story.served.lake.duckdb()
    with ThreadPoolExecutor(1) as pool:
        alice = pool.submit(lambda: [beside.execute("INSERT INTO lake.ns.t VALUES (?)", [i]) for i in range(20)])
        for i in range(100, 105):
            story.run(f"INSERT INTO {{t}} VALUES {i}")
        alice.result()
    assert story.check() == 25
    assert sorted(story.ask("FROM {t}")) == [(i,) for i in (*range(20), *range(100, 105))]
    story.check_past()
