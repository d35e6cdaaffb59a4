"""DuckDB uses names of folders again: what is given out from then on opens the own files alone, and none that wait for their removal."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from duckicelake.embedded.object_store import ROLE_ARN
from tests.rest.auth.escapes.ground import BUCKET, list_keys
from tests.rest.auth.escapes.signed import SigningClient, sign_as, to_path
from tests.rest.auth.principals import Guarded, guard
from tests.rest.auth.rules.managed import Managed
from tests.rest.auth.vended import is_refused, load_with_keys, open_root, open_vended
from tests.rest.serving import WAREHOUSE
from tests.support.lakes import FreshLake
from tests.support.tiers import long_after

TABLE = "namespaces/a/tables/t1"
MAKE = "CREATE TABLE a.{} AS SELECT range AS i FROM range(100000)"
EXPIRE = "CALL ducklake_expire_snapshots('lake', older_than => now())"
CLEAN = "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)"


@dataclass(frozen=True, slots=True)
class Opener:
    """What opens objects to somebody who may read a.t1 alone; fresh each time."""

    guarded: Guarded
    managed: Managed

    def vended(self) -> Callable[[str], bool]:
        """Keys that come with a load."""
        s3 = load_with_keys(self.guarded, "reader", TABLE).s3
        return lambda key: not is_refused(s3.get_object, Bucket=BUCKET, Key=key)

    def ducklake(self) -> Callable[[str], bool]:
        """Keys of a DuckDB user."""
        [given] = self.managed.ask("one", "GET", "ducklake-credentials").json["storage-credentials"]
        s3 = open_vended({**given["config"], "s3.endpoint": self.guarded.lake.store.endpoint})
        return lambda key: not is_refused(s3.get_object, Bucket=BUCKET, Key=key)

    def signed(self) -> Callable[[str], bool]:
        """Signatures."""
        client = sign_as(self.guarded, "reader", TABLE)
        return lambda key: client.send("GET", to_path(key))[0] == 200


def drop_plainly(conn: Any) -> None:
    """A table by the very name."""
    conn.execute(MAKE.format("t1"))
    conn.execute("DROP TABLE a.t1")


def drop_twin(conn: Any) -> None:
    """One whose name differs by case, so that SeaweedFS takes its folder for the same."""
    conn.execute(MAKE.format("T1"))
    conn.execute("DROP TABLE a.T1")


def drop_renamed(conn: Any) -> None:
    """One that was called so once, with files of partitions in folders of their own."""
    conn.execute("CREATE TABLE a.t1 (i BIGINT); ALTER TABLE a.t1 SET PARTITIONED BY (i); INSERT INTO a.t1 SELECT 7 FROM range(1000)")
    conn.execute("ALTER TABLE a.t1 RENAME TO former; DROP TABLE a.former")


@pytest.mark.parametrize("drop", long_after(1, [drop_plainly, drop_twin, drop_renamed]))
def test_files_that_are_yet_to_be_removed_are_nobodys(each_lake: FreshLake, drop: Callable[[Any], None]) -> None:
    """Expired and not cleaned up, they lie in the new table's folder: that is opened file by file, and as a whole when they have gone."""
    lake = each_lake
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        root, conn, managed = open_root(guarded), lake.duckdb(), Managed(guarded)
        conn.execute("CALL lake.set_option('data_inlining_row_limit', 0)")
        drop(conn)
        [theirs] = [key for key in list_keys(root, f"{lake.name}/data/a/") if "/t1/" in key.lower()]
        conn.execute(EXPIRE)
        conn.execute(MAKE.format("t1"))
        [own] = [key for key in list_keys(root, f"{lake.name}/data/a/") if "/t1/" in key.lower() and key != theirs]
        managed.add("one")
        managed.give("read", "table:a.t1", "one")
        opener = Opener(guarded, managed)
        # a store that obeys headers which nobody signed gets no signatures
        kinds = [opener.vended, opener.ducklake] + [opener.signed] * (
            sign_as(guarded, "reader", TABLE).ask("GET", to_path(own)).status == 200
        )
        for kind in kinds:
            opens = kind()
            assert (opens(own), opens(theirs)) == (True, False), kind.__name__
        conn.execute(CLEAN)
        folder = own.rpartition("/")[0] + "/"
        [newer] = guarded.get("reader", f"{TABLE}/credentials").json["storage-credentials"]
        listed = open_vended(newer["config"]).list_objects_v2(Bucket=BUCKET, Prefix=folder)
        assert [found["Key"] for found in listed["Contents"]] == [own]


@pytest.mark.whole
def test_own_files_that_are_yet_to_be_removed_close_nothing(lake: FreshLake) -> None:
    """What maintenance left behind of the table's own, its folder stays its own, also when others are expired meanwhile."""
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        conn = lake.duckdb()
        conn.execute("CALL lake.set_option('data_inlining_row_limit', 0)")
        conn.execute(MAKE.format("t1") + "; INSERT INTO a.t1 VALUES (1); INSERT INTO a.t1 VALUES (2); " + MAKE.format("gone"))
        conn.execute("CALL ducklake_merge_adjacent_files('lake')")
        conn.execute("DROP TABLE a.gone")
        conn.execute(EXPIRE)
        folders = {row[0] for row in lake.psycopg().execute("SELECT split_part(path, '/', 2) FROM ducklake_files_scheduled_for_deletion")}
        assert folders == {"t1", "gone"}
        s3 = load_with_keys(guarded, "reader", TABLE).s3
        assert s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{lake.name}/data/a/t1/")["KeyCount"] > 2


def test_a_ready_answer_ends_when_another_table_takes_the_folder(each_lake: FreshLake) -> None:
    """Though nothing of the table itself was changed: its keys were for a folder that was its alone, and another's now."""
    lake, path = each_lake, "namespaces/a/tables/old"
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        root, conn = open_root(guarded), lake.duckdb()
        conn.execute(MAKE.format("t1") + "; ALTER TABLE a.t1 RENAME TO old")
        [own] = list_keys(root, f"{lake.name}/data/a/t1/")
        before = load_with_keys(guarded, "reader", path)
        assert load_with_keys(guarded, "reader", path).etag == before.etag
        conn.execute(MAKE.format("t1"))
        [theirs] = set(list_keys(root, f"{lake.name}/data/a/t1/")) - {own}
        assert guarded.get("reader", path, If_None_Match=before.etag, X_Iceberg_Access_Delegation="vended-credentials").status == 200
        s3 = load_with_keys(guarded, "reader", path).s3
        assert s3.get_object(Bucket=BUCKET, Key=own)["Body"].read(4) == b"PAR1"
        assert is_refused(s3.get_object, Bucket=BUCKET, Key=theirs)


@pytest.mark.whole
@pytest.mark.parametrize("folder", long_after(1, ["", "a/"]))
def test_lakes_with_one_data_path_have_no_folders_alone(lake: FreshLake, other_lake: FreshLake, folder: str) -> None:
    """Nor with one in the other's: tables of one name lie in one folder, and each is opened file by file, by its own lake's principals."""
    theirs_at = lake.data_path + folder
    other_lake.psycopg().execute("UPDATE ducklake_metadata SET value = %s WHERE key = 'data_path' AND scope IS NULL", [theirs_at])
    both = {WAREHOUSE: lake, "other": other_lake}
    sections = {name: {"postgres_dsn": each.dsn, "metadata_schema": each.metadata_schema} for name, each in both.items()}
    with guard(lake, lakes=sections, postgres_dsn=None, sts_role_arn=ROLE_ARN) as guarded:
        root, managed = open_root(guarded), Managed(guarded)
        lake.duckdb().execute(MAKE.format("t1"))
        [own] = list_keys(root, f"{lake.name}/data/a/t1/")
        schema, table = ("t1", "main") if folder else ("a", "t1")
        other_lake.duckdb().execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.{table} AS SELECT range AS i FROM range(100000)")
        [theirs] = set(list_keys(root, f"{lake.name}/data/a/t1/")) - {own}
        managed.add("one")
        managed.give("read", "table:a.t1", "one")
        token = managed.token("one")
        s3 = open_vended(guarded.server.get(TABLE, token | {"X-Iceberg-Access-Delegation": "vended-credentials"}).json["config"])
        client = SigningClient(guarded, "one", TABLE, token["Authorization"].removeprefix("Bearer "))
        kinds = {
            "vended": lambda key: not is_refused(s3.get_object, Bucket=BUCKET, Key=key),
            "signed": lambda key: client.send("GET", to_path(key))[0] == 200,
            "ducklake": Opener(guarded, managed).ducklake(),
        }
        assert {kind: (opens(own), opens(theirs)) for kind, opens in kinds.items()} == dict.fromkeys(kinds, (True, False))
