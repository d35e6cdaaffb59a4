"""Trino's procedures: what is rewritten changes no row, main goes back, and what needs garbage collection says so, or does it when told."""

import duckdb
import pytest

from duckicelake.commands.facts import Facts
from duckicelake.commands.snippets import format_trino
from tests.interop.trino.reader import open_trino
from tests.interop.trino.writing.story import Story
from tests.rest.serving import WAREHOUSE

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("trino")]

TRAVEL = "SELECT count(*) FROM {{t}} AT (VERSION => {})"


def fill(story: Story, format_version: int = 2) -> list[int]:
    """Rows of both sides with deletes of both, in files and inlined; returns the snapshots."""
    story.run(
        f"CREATE TABLE {{t}} WITH (format_version = {format_version}, partitioning = ARRAY['bucket(id, 2)'])"
        " AS SELECT k AS id, 'n' || cast(k AS varchar) AS name FROM UNNEST(sequence(1, 30)) AS q(k)"
    )
    story.ask("INSERT INTO {t} SELECT range, 'duck' FROM range(100, 120)")
    story.run("DELETE FROM {t} WHERE id = 3 OR id = 105")
    story.ask("DELETE FROM {t} WHERE id IN (4, 106)")
    story.ask("INSERT INTO {t} VALUES (500, 'inlined')")
    assert story.check() == 47
    return story.list_snapshots()


@pytest.mark.parametrize("format_version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_rewriting_changes_no_rows(story: Story, format_version: int) -> None:
    """Data files with their deletes, a partition's alone, and manifests; every snapshot reads as before."""
    ids = fill(story, format_version)
    past = [story.check(snapshot_id=snapshot_id) for snapshot_id in ids]
    story.run("ALTER TABLE {t} EXECUTE optimize(file_size_threshold => '100MB')")
    assert story.check() == 47
    assert story.run('SELECT count(*) FROM {c}.ns."t$files" WHERE content <> 0') == [(0,)]
    assert story.load()["snapshots"][-1]["summary"]["operation"] == "replace"
    story.run("INSERT INTO {t} VALUES (600, 'x')")
    story.run("ALTER TABLE {t} EXECUTE optimize_manifests")
    assert story.check() == 48
    assert [story.check(snapshot_id=snapshot_id) for snapshot_id in ids] == past
    story.check_going_on()


@pytest.mark.long
def test_a_partition_is_optimized_alone(story: Story) -> None:
    """Files of the others stay as they are."""
    story.run("CREATE TABLE {t} (id integer, name varchar) WITH (partitioning = ARRAY['name'])")
    for number in range(2):
        story.run(f"INSERT INTO {{t}} VALUES ({number}, 'a'), ({number}, 'b')")
    story.run("ALTER TABLE {t} EXECUTE optimize WHERE name = 'a'")
    assert story.check() == 4
    assert story.run('SELECT partition.name, count(*) FROM {c}.ns."t$files" GROUP BY 1 ORDER BY 1') == [("a", 1), ("b", 2)]


@pytest.mark.long
def test_main_goes_back_and_forth(story: Story) -> None:
    """Both ways to say it; rows go in afterwards."""
    ids = fill(story)
    story.run(f"ALTER TABLE {{t}} EXECUTE rollback_to_snapshot(BIGINT '{ids[1]}')")
    assert story.check() == 50
    story.run(f"CALL {{c}}.system.rollback_to_snapshot('ns', 't', BIGINT '{ids[0]}')")
    assert story.check() == 30
    story.run("INSERT INTO {t} VALUES (700, 'after')")
    assert story.check() == 31
    current = {row[0]: row[1] for row in story.run('SELECT snapshot_id, is_current_ancestor FROM {c}.ns."t$history"')}
    assert current[ids[0]]
    assert not current[ids[2]]
    story.check_going_on()


@pytest.mark.long
def test_snapshots_are_expired_when_the_table_says_so(story: Story) -> None:
    """Not before; then Trino does not show them any more, and DuckDB still travels to them where Trino left their files."""
    ids = fill(story)
    expire = "ALTER TABLE {t} EXECUTE expire_snapshots(retention_threshold => '0s')"
    story.refuse(expire, "GC is disabled")
    assert story.list_snapshots() == ids
    story.run("ALTER TABLE {t} SET PROPERTIES extra_properties = MAP(ARRAY['gc.enabled'], ARRAY['true'])")
    story.run(expire)
    assert story.list_snapshots() == ids[-1:]
    assert story.check() == 47
    assert story.ask(TRAVEL.format(ids[0])) == [(30,)]
    story.run("INSERT INTO {t} VALUES (600, 'x')")
    story.check_going_on()


@pytest.mark.long
def test_files_are_added_from_the_table_s_location(story: Story) -> None:
    """By their names, in place; others are refused, and so is what Trino does for Hive alone."""
    story.run("CREATE TABLE {t} (id integer, name varchar)")
    location = story.load()["location"]
    for place in (f"{location}/incoming", f"s3://lake/{story.served.lake.name}/elsewhere"):
        story.ask(f"COPY (SELECT range::INTEGER AS id, 'added' AS name FROM range(20)) TO '{place}/a.parquet' (FORMAT parquet)")
    story.run(f"ALTER TABLE {{t}} EXECUTE add_files(location => '{location}/incoming', format => 'PARQUET')")
    assert story.check() == 20
    elsewhere = f"ALTER TABLE {{t}} EXECUTE add_files(location => 's3://lake/{story.served.lake.name}/elsewhere', format => 'PARQUET')"
    story.refuse(elsewhere, "does not lie in the table's location")
    story.refuse("ALTER TABLE {t} EXECUTE add_files_from_table('ns', 't')", "does not support add_files_from_table")
    assert story.check() == 20
    story.run("DELETE FROM {t} WHERE id = 7")
    story.check_going_on()


@pytest.mark.long
def test_tables_leave_and_come_back(story: Story) -> None:
    """Unregistered, a table is gone on both sides; registered by its location or metadata file it has rows, history and ids again."""
    ids = fill(story)
    location = story.load()["location"]
    story.run("CALL {c}.system.unregister_table('ns', 't')")
    assert story.ask("SELECT count(*) FROM duckdb_tables() WHERE database_name = 'lake'") == [(0,)]
    story.run(f"CALL {{c}}.system.register_table('ns', 't', '{location}')")
    assert story.check() == 47
    assert set(ids) <= {row[0] for row in story.run('SELECT snapshot_id FROM {c}.ns."t$snapshots"')}
    name = story.served.server.get("namespaces/ns/tables/t").json["metadata-location"].rpartition("/")[2]
    story.run("CALL {c}.system.unregister_table('ns', 't')")
    story.refuse(f"CALL {{c}}.system.register_table('ns', 't', '{location}', 'none.metadata.json')", "Metadata file does not exist")
    story.run(f"CALL {{c}}.system.register_table('ns', 't', '{location}', '{name}')")
    story.refuse(f"CALL {{c}}.system.register_table('ns', 't', '{location}')", "already exists")
    story.run("INSERT INTO {t} VALUES (600, 'x')")
    assert story.check() == 48
    story.check_going_on()


def print_catalog(story: Story) -> dict[str, str]:
    """What `duckicelake connect --client trino` prints for the lake, as settings."""
    lake, store = story.served.lake, story.served.lake.store
    keys = (store.endpoint, store.region, store.access_key_id, store.secret_access_key)
    paths = (lake.iceberg_path, "", lake.dsn, lake.data_path, lake.metadata_schema)
    text = format_trino(Facts(story.served.server.uri, WAREHOUSE, WAREHOUSE, None, *paths, *keys))
    printed = dict(line.split("=", 1) for line in text.splitlines())
    assert printed.pop("connector.name") == "iceberg"
    return printed


@pytest.mark.long
def test_the_printed_catalog_removes_no_files(story: Story) -> None:
    """Trino asks for no `gc.enabled` before it removes what metadata files do not name, so its own limit has to keep it from that."""
    story.run("CREATE TABLE {t} AS SELECT k AS id FROM UNNEST(sequence(1, 20)) AS q(k)")
    story.run("DELETE FROM {t} WHERE id = 3")
    printed = story.trino.add(print_catalog(story))
    remove = "ALTER TABLE {}.ns.t EXECUTE remove_orphan_files(retention_threshold => '{}')"
    story.refuse(remove.format(printed, "7d"), "shorter than the minimum retention configured in the system")
    assert story.check() == 19
    unbound = open_trino(story.trino, story.served, {"iceberg.remove-orphan-files.min-retention": "0s"}).catalog
    assert dict(story.run(remove.format(unbound, "0s")))["deleted_files_count"] > 0
    assert story.run("SELECT count(id) FROM {t}") == [(19,)]
    with pytest.raises(duckdb.Error, match="404"):
        story.served.lake.duckdb().execute("SELECT sum(id) FROM lake.ns.t").fetchall()
    for name in (printed, unbound):
        story.run(f"DROP CATALOG {name}")
