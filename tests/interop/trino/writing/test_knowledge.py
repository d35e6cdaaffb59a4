"""What Trino knows of a table that both sides have written: statistics, the past, metadata tables, refs, changes."""

from collections import Counter

import pytest

from tests.interop.trino.writing.story import OWN, Story

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("trino")]


@pytest.fixture
def filled(story: Story) -> Story:
    """The table ns.t with rows, updates and deletes of both sides, in partitions."""
    story.run(
        "CREATE TABLE {t} WITH (partitioning = ARRAY['part']) AS"
        " SELECT k AS id, 'p' || cast(k % 2 AS varchar) AS part, 'n' || cast(k AS varchar) AS name FROM UNNEST(sequence(1, 30)) AS q(k)"
    )
    story.ask("INSERT INTO {t} SELECT range, 'p0', 'duck' FROM range(100, 120)")
    story.run("UPDATE {t} SET name = 'u' WHERE id IN (1, 101)")
    story.ask("DELETE FROM {t} WHERE id IN (2, 102)")
    story.run("DELETE FROM {t} WHERE part = 'p1' AND id > 20")
    return story


@pytest.mark.long
def test_metadata_tables_add_up(filled: Story) -> None:
    """Files, entries, manifests, partitions, snapshots, history, refs and properties tell of the rows that are there."""
    count, ids = filled.check(), filled.check_past()
    files = filled.run('SELECT content, file_path, record_count FROM {c}.ns."t$files"')
    assert sum(rows if content == 0 else -rows for content, _, rows in files) == count
    live = filled.run('SELECT data_file.file_path FROM {c}.ns."t$entries" WHERE status <> 2')
    assert sorted(live) == sorted((path,) for _, path, _ in files)
    added = filled.run(
        'SELECT DISTINCT snapshot_id, data_file.file_path FROM {c}.ns."t$all_entries" WHERE status = 1 AND data_file.content = 0'
    )
    assert len({path for _, path in added}) == len(added)
    counts = "sum(added_data_files_count + existing_data_files_count)"
    counted = filled.run(f'SELECT content, {counts} FROM {{c}}.ns."t$manifests" GROUP BY content')
    assert dict(counted) == Counter(content for content, _, _ in files)
    assert len(filled.run('SELECT path FROM {c}.ns."t$all_manifests"')) >= len(counted)
    parts = dict(filled.run('SELECT partition.part, sum(file_count) FROM {c}.ns."t$partitions" GROUP BY 1'))
    assert parts.keys() >= {"p0", "p1"}
    assert [row[0] for row in filled.run(f'SELECT parent_id FROM {{c}}.ns."t$snapshots" WHERE {OWN} ORDER BY committed_at, 1')][1:] == ids[
        :-1
    ]
    assert all(row[0] for row in filled.run('SELECT is_current_ancestor FROM {c}.ns."t$history" WHERE snapshot_id < 1000000'))
    assert filled.run('SELECT name, type, snapshot_id FROM {c}.ns."t$refs"') == [("main", "BRANCH", ids[-1])]
    properties = dict(filled.run('SELECT key, value FROM {c}.ns."t$properties"'))
    assert properties["ducklake.snapshot-id"] == properties["current-snapshot-id"] == str(ids[-1])
    log = filled.run('SELECT latest_snapshot_id, file FROM {c}.ns."t$metadata_log_entries" ORDER BY timestamp')
    assert log[-1] == (ids[-1], filled.served.server.get("namespaces/ns/tables/t").json["metadata-location"])
    hidden = filled.run('SELECT "$path", "$partition", "$file_modified_time" FROM {t}')
    assert {path for path, _, _ in hidden} <= {path for _, path, _ in files}


@pytest.mark.long
def test_the_past_is_found_by_time_and_by_version(filled: Story) -> None:
    """A moment means the snapshot before it, on both sides; a table is rolled on from there by a query."""
    at = dict(filled.run(f'SELECT snapshot_id, cast(committed_at AS varchar) FROM {{c}}.ns."t$snapshots" WHERE {OWN}'))
    for snapshot_id, time in at.items():
        count = filled.check(snapshot_id=snapshot_id)
        assert filled.run(f"SELECT count(*) FROM {{t}} FOR TIMESTAMP AS OF TIMESTAMP '{time}'") == [(count,)]
    first = min(at)
    filled.refuse("SELECT * FROM {t} FOR TIMESTAMP AS OF TIMESTAMP '2001-01-01 00:00:00 UTC'", "No version history table")
    filled.refuse("SELECT * FROM {t} FOR VERSION AS OF BIGINT '999999'", "snapshot ID does not exists|snapshot")
    filled.run(f"INSERT INTO {{t}} SELECT * FROM {{t}} FOR VERSION AS OF BIGINT '{first}' WHERE id = 29")
    assert filled.run("SELECT name FROM {t} WHERE id = 29") == [("n29",)]


@pytest.mark.long
def test_statistics_are_written_read_and_dropped(filled: Story) -> None:
    """In Puffin files of the table, for all columns or some; DuckDB's rows count at once."""
    statistics = filled.load()["statistics"]
    assert {blob["type"] for entry in statistics for blob in entry["blob-metadata"]} == {"apache-datasketches-theta-v1"}
    filled.run("ANALYZE {t}")
    count = filled.check()
    shown = {row[0]: row for row in filled.run("SHOW STATS FOR {t}")}
    distinct = filled.ask("SELECT count(DISTINCT id), count(DISTINCT part), count(DISTINCT name) FROM {t}")[0]
    assert tuple(shown[name][2] for name in ("id", "part", "name")) == distinct
    # Trino counts the rows of data files, deleted or not.
    assert shown[None][4] >= count
    assert filled.check_past()
    filled.ask("INSERT INTO {t} SELECT range, 'p0', 'later' FROM range(200, 220)")
    assert {row[0]: row for row in filled.run("SHOW STATS FOR {t}")}[None][4] == shown[None][4] + 20
    filled.run("ALTER TABLE {t} EXECUTE drop_extended_stats")
    assert filled.load()["statistics"] == []
    filled.run("ANALYZE {t} WITH (columns = ARRAY['part'])")
    assert {row[0]: row[2] for row in filled.run("SHOW STATS FOR {t}")} == {"id": None, "part": 2.0, "name": None, None: None}
    filled.check_going_on()


def test_branches_and_tags_of_others_are_read(filled: Story) -> None:
    """Trino 483 writes to none of an Iceberg table, and says so."""
    table = filled.served.pyiceberg().catalog.load_table("ns.t")
    head = filled.list_snapshots()[-1]
    table.manage_snapshots().create_branch(head, "audit").create_tag(head, "kept").commit()
    filled.ask("DELETE FROM {t}")
    assert filled.run("SELECT count(*) FROM {t}") == [(0,)]
    for name in ("audit", "kept"):
        assert filled.run(f"SELECT count(*) FROM {{t}} FOR VERSION AS OF '{name}'") == filled.ask(
            f"SELECT count(*) FROM {{t}} AT (VERSION => {head})"
        )
    assert {row[0] for row in filled.run('SELECT name FROM {c}.ns."t$refs"')} == {"main", "audit", "kept"}
    filled.refuse("INSERT INTO {t} @ audit VALUES (1, 'x', 'y')", "Branch 'audit' does not exist")
    filled.refuse("CREATE BRANCH more IN TABLE {t}", "does not support creating branches")


def test_changes_between_appends(story: Story) -> None:
    """Of both sides, each row with its snapshot; snapshots with delete files are more than Trino's changes take."""
    story.run("CREATE TABLE {t} AS SELECT 1 AS id")
    story.run("INSERT INTO {t} VALUES 2")
    story.ask("INSERT INTO {t} VALUES (3)")
    story.ask("INSERT INTO {t} SELECT range FROM range(10, 30)")
    ids = story.list_snapshots()
    changes = (
        f"SELECT id, _change_type, _change_version_id FROM TABLE({{c}}.system.table_changes('ns', 't', BIGINT '{ids[0]}', BIGINT '{{}}'))"
    )
    found = story.run(changes.replace("{}", str(ids[-1])))
    assert sorted(found) == [(2, "insert", ids[1]), (3, "insert", ids[2]), *((i, "insert", ids[3]) for i in range(10, 30))]
    story.run("DELETE FROM {t} WHERE id = 2")
    story.refuse(changes.replace("{}", str(story.list_snapshots()[-1])), "not yet supported by the table_changes function")
