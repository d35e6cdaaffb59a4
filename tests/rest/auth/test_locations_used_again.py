"""Tables that are made at a chosen location, where a dropped table was: keys, signatures, and when the location is free again."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duckicelake.commands.check import remove_orphans
from duckicelake.embedded.object_store import ROLE_ARN
from duckicelake.lake.install import install
from duckicelake.lake.writing.registration import has_purge, remove_purged_location
from tests.rest.auth.escapes.ground import list_keys
from tests.rest.auth.principals import Guarded, guard
from tests.rest.auth.test_permissions import SCHEMA
from tests.rest.auth.vended import is_refused, open_root, open_vended, split
from tests.rest.serving import Answer, make_settings
from tests.support.lakes import FreshLake
from tests.support.tiers import long_after, whole_after

TABLES, TABLE = "namespaces/a/tables", "namespaces/a/tables/chosen"
VENDED, SIGNED = "vended-credentials", "remote-signing"


def make(guarded: Guarded, location: str, delegation: str | None, who: str = "admin", **more: Any) -> Answer:
    """Create the table at a location."""
    headers = {} if delegation is None else {"X_Iceberg_Access_Delegation": delegation}
    return guarded.ask(who, "POST", TABLES, {"name": "chosen", "schema": SCHEMA, "location": location, **more}, **headers)


def expire(lake: FreshLake) -> None:
    """Let DuckLake forget dropped tables."""
    lake.duckdb().execute("CALL ducklake_expire_snapshots('lake', older_than => now())")


def expire_and_clean(lake: FreshLake) -> None:
    """Let DuckLake forget dropped tables, and remove their files."""
    expire(lake)
    lake.duckdb().execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")


def add_file(lake: FreshLake, location: str) -> None:
    """Add a data file that lies in the table's location, as clients' files do."""
    conn, uri = lake.duckdb(), f"{location}/data/x.parquet"
    conn.execute(f"COPY (SELECT 1::BIGINT AS i) TO '{uri}'")
    conn.execute(f"CALL ducklake_add_data_files('lake', 'chosen', '{uri}', schema => 'a', allow_missing => true)")


@pytest.mark.parametrize("purged", long_after(1, ["true", "false"]))
def test_a_create_with_keys_is_refused_before_the_table_is_made(lake: FreshLake, purged: str) -> None:
    """As long as DuckLake knows the dropped table; its location is free when the table has been expired and cleaned up."""
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        location = lake.iceberg_path + "a/chosen"
        assert "storage-credentials" in make(guarded, location, VENDED).json
        add_file(lake, location)
        assert guarded.ask("admin", "DELETE", f"{TABLE}?purgeRequested={purged}").status == 204
        for delegation in (VENDED, SIGNED):
            for more in ({}, {"stage-create": True}):
                refused = make(guarded, location, delegation, **more)
                assert refused.error == (406, "UnsupportedOperationException"), (delegation, more)
                assert "is not this table's alone" in refused.json["error"]["message"]
        assert guarded.get("admin", TABLE).status == 404
        expire(lake)
        assert make(guarded, location, VENDED).status == 406, "the dropped table's file is still there"
        expire_and_clean(lake)
        made = make(guarded, location, VENDED).json
        bucket, key = split(location)
        open_vended(made["config"]).put_object(Bucket=bucket, Key=f"{key}/data/x", Body=b"x")


@pytest.mark.whole
def test_a_table_where_another_was_is_read_with_keys(lake: FreshLake) -> None:
    """By whoever may write, too: with keys that read alone, until the dropped table has been expired and cleaned up."""
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        location = lake.iceberg_path + "a/chosen"
        assert make(guarded, location, None).status == 200
        assert guarded.ask("admin", "DELETE", TABLE).status == 204
        assert make(guarded, location, None).status == 200
        lake.duckdb().execute("INSERT INTO a.chosen SELECT range FROM range(100000)")
        bucket, key = split(location)
        [file] = list_keys(open_root(guarded), split(lake.data_path)[1])
        for path in (TABLE, f"{TABLE}/credentials"):
            told = guarded.get("admin", path, X_Iceberg_Access_Delegation=VENDED)
            assert told.status == 200, told.body
            s3 = open_vended(told.json["storage-credentials"][0]["config"])
            assert s3.get_object(Bucket=bucket, Key=file)["Body"].read(4) == b"PAR1"
            assert is_refused(s3.put_object, Bucket=bucket, Key=f"{key}/data/x", Body=b"x")
        expire_and_clean(lake)
        told = guarded.get("admin", TABLE, X_Iceberg_Access_Delegation=VENDED).json
        open_vended(told["config"]).put_object(Bucket=bucket, Key=f"{key}/data/x", Body=b"x")


def test_who_may_make_a_table_may_name_the_location_that_has_its_name(lake: FreshLake) -> None:
    """Exactly that one, while nothing is and was there; tools that always name a location work then."""
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        location = lake.iceberg_path + "a/chosen"
        for other in (lake.iceberg_path + "a/other", lake.iceberg_path + "b/chosen", location + "/x", lake.iceberg_path + "chosen"):
            assert make(guarded, other, VENDED, "writer").error == (403, "NotAuthorizedException")
        assert make(guarded, location, VENDED, "reader").status == 403
        assert make(guarded, location, VENDED, "writer", **{"stage-create": True}).status == 403
        made = make(guarded, location + "/", VENDED, "writer").json
        assert made["metadata"]["location"] == location
        bucket, key = split(location)
        open_vended(made["config"]).put_object(Bucket=bucket, Key=f"{key}/data/x", Body=b"x")
        assert guarded.ask("writer", "DELETE", TABLE).status == 204
        assert make(guarded, location, VENDED, "writer").status == 403, "its objects are still there"


@pytest.mark.whole
def test_a_location_with_objects_is_not_free(lake: FreshLake) -> None:
    """Nor one that a dropped table had whose files DuckLake has not removed yet."""
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        location = lake.iceberg_path + "a/chosen"
        bucket, key = split(location)
        open_root(guarded).put_object(Bucket=bucket, Key=f"{key}/data/stray.parquet", Body=b"x")
        refused = make(guarded, location, VENDED, "writer")
        assert refused.error == (403, "NotAuthorizedException")
        assert "has objects in it" in refused.json["error"]["message"]
        open_root(guarded).delete_object(Bucket=bucket, Key=f"{key}/data/stray.parquet")
        assert make(guarded, location, VENDED, "admin").status == 200
        assert guarded.ask("admin", "DELETE", f"{TABLE}?purgeRequested=true").status == 204
        for found in open_root(guarded).list_objects_v2(Bucket=bucket, Prefix=f"{key}/").get("Contents", []):
            open_root(guarded).delete_object(Bucket=bucket, Key=found["Key"])
        assert make(guarded, location, None, "writer").error == (406, "UnsupportedOperationException")
        expire_and_clean(lake)
        assert "storage-credentials" in make(guarded, location, VENDED, "writer").json


def sweep(lake: FreshLake) -> list[str]:
    """Remove what nothing names, as `maintain` and `check --repair` do."""
    [settings] = make_settings(lake).lakes()
    return remove_orphans(settings, datetime.now(UTC) + timedelta(days=1))


@pytest.mark.parametrize("by_duckdb", whole_after(1, [True, False]))
def test_a_location_is_free_for_everybody_after_the_dropped_table_is_cleaned_up(lake: FreshLake, by_duckdb: bool) -> None:
    """Expiry and clean-up are DuckLake's; the published objects that nobody can read any more are removed with the orphans."""
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        location = lake.iceberg_path + "a/chosen"
        assert make(guarded, location, VENDED, "writer").status == 200
        add_file(lake, location)
        assert guarded.get("writer", TABLE).status == 200
        if by_duckdb:
            lake.duckdb().execute("DROP TABLE a.chosen")
        else:
            assert guarded.ask("writer", "DELETE", TABLE).status == 204
        assert sweep(lake) == [], "it may come back"
        expire_and_clean(lake)
        assert make(guarded, location, VENDED, "writer").status == 403, "its metadata is still there"
        assert {uri.rpartition(".")[2] for uri in sweep(lake)} == {"json", "avro", "text"}
        bucket, key = split(location)
        made = make(guarded, location, VENDED, "writer").json
        open_vended(made["config"]).put_object(Bucket=bucket, Key=f"{key}/data/x", Body=b"x")
        assert sweep(lake) == [f"{location}/data/x"], "only what nothing names"
        assert guarded.get("writer", TABLE).status == 200


def test_an_unregistered_table_keeps_its_objects(lake: FreshLake) -> None:
    """For the catalog that registers it next: also when DuckLake has forgotten it, and when it has no files of its own in its location."""
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        location = lake.iceberg_path + "a/chosen"
        assert make(guarded, location, None).status == 200
        lake.duckdb().execute("INSERT INTO a.chosen SELECT range FROM range(100000)")
        metadata = guarded.get("admin", TABLE).json["metadata-location"]
        assert guarded.ask("admin", "POST", f"{TABLE}/unregister").status == 200
        expire_and_clean(lake)
        assert sweep(lake) == []
        registered = guarded.ask("admin", "POST", "namespaces/a/register", {"name": "again", "metadata-location": metadata})
        assert registered.status == 200, registered.body
        [[rows]] = lake.duckdb().execute("SELECT count(*) FROM a.again").fetchall()
        assert rows == 100000
        # Another catalog may have registered it, too.
        lake.duckdb().execute("DROP TABLE a.again")
        expire_and_clean(lake)
        assert sweep(lake) == []


def test_a_table_that_was_dropped_before_the_lake_was_prepared_anew_keeps_its_objects(lake: FreshLake) -> None:
    """Older releases left no word of tables that were unregistered."""
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        assert make(guarded, lake.iceberg_path + "a/chosen", None).status == 200
        assert guarded.ask("admin", "DELETE", TABLE).status == 204
        conn = lake.psycopg()
        conn.execute("DELETE FROM iceberg_setting WHERE key = 'forgotten_purged'")
        install(conn, lake.metadata_schema, lake.iceberg_path)
        expire_and_clean(lake)
        assert sweep(lake) == []


def read_last_drop(lake: FreshLake) -> datetime:
    """The time of the newest lake snapshot."""
    [[time]] = lake.psycopg().execute("SELECT max(snapshot_time) FROM ducklake_snapshot").fetchall()
    return time


@pytest.mark.whole
def test_what_another_catalog_wrote_after_the_drop_stays(lake: FreshLake) -> None:
    """It may have a table at the location, which this lake knows nothing of."""
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        location = lake.iceberg_path + "a/chosen"
        assert make(guarded, location, None).status == 200
        lake.duckdb().execute("DROP TABLE a.chosen")
        dropped_at, (bucket, key), s3 = read_last_drop(lake), split(location), open_root(guarded)
        s3.put_object(Bucket=bucket, Key=f"{key}/data/x", Body=b"x")
        # The store tells whole seconds.
        while s3.head_object(Bucket=bucket, Key=f"{key}/data/x")["LastModified"] <= dropped_at:
            s3.put_object(Bucket=bucket, Key=f"{key}/data/x", Body=b"x")
        expire_and_clean(lake)
        gone = sweep(lake)
        assert f"{location}/metadata/v1.metadata.json" in gone
        assert f"{location}/data/x" not in gone


@pytest.mark.parametrize("first_moves", whole_after(1, [False, True]))
def test_a_forgotten_table_takes_nothing_from_one_that_was_at_its_location_later(lake: FreshLake, first_moves: bool) -> None:
    """That one has moved, or has been dropped, and DuckLake knows it still: its history and undrop need what it wrote there."""
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        first, elsewhere, conn = lake.iceberg_path + "a/chosen", lake.iceberg_path + "a/elsewhere", lake.duckdb()

        def move(to: str) -> None:
            update = {"updates": [{"action": "set-location", "location": to}], "requirements": []}
            assert guarded.ask("admin", "POST", TABLE, update).status == 200

        assert make(guarded, first, None).status == 200
        if first_moves:
            move(elsewhere)
        conn.execute("DROP TABLE a.chosen")
        known = [row[0] for row in conn.execute("SELECT snapshot_id FROM lake.snapshots()").fetchall()][:-1]
        assert make(guarded, first, None).status == 200
        written = {guarded.get("admin", TABLE).json["metadata-location"]}
        if not first_moves:
            move(lake.iceberg_path + "a/third")
        conn.execute("DROP TABLE a.chosen")
        conn.execute(f"CALL ducklake_expire_snapshots('lake', versions => {known})")
        [[purges]] = lake.psycopg().execute("SELECT count(*) FROM iceberg_purge").fetchall()
        assert purges == 1, "the first table is forgotten, the second is not"
        assert not written & set(sweep(lake))


def test_a_table_that_comes_is_found_by_another_spelling_of_its_location(lake: FreshLake) -> None:
    """A purge of `s3://b/x` ends at `s3a://b/x`, too."""
    conn = lake.psycopg()
    conn.execute("INSERT INTO iceberg_purge (table_id, table_uuid, locations) VALUES (1, gen_random_uuid(), ARRAY['s3://b/x', 's3://b/y'])")
    assert has_purge(conn, 0, "s3a://b/x")
    assert not has_purge(conn, 0, "s3a://b/z")
    remove_purged_location(conn, "s3a://b/x")
    assert conn.execute("SELECT locations FROM iceberg_purge").fetchall() == [(["s3://b/y"],)]
