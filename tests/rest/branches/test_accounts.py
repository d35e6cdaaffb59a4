"""Accounts on branches: grants go by uuid for the whole repository, and vended keys write to the branch's folders alone."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest

from duckicelake.embedded.object_store import ROLE_ARN
from duckicelake.lake.branches.create import BranchRequest
from duckicelake.lake.branches.delete import delete_branch
from tests.lake.branches.repository import make_branch
from tests.rest.auth.escapes.ground import BUCKET, list_keys, put
from tests.rest.auth.principals import Guarded, guard
from tests.rest.auth.rules.managed import Managed, given
from tests.rest.auth.vended import Vended, is_refused, load_with_keys, open_root, open_vended, split
from tests.support.lakes import FreshLake, make_lake
from tests.support.shared_stack import SharedStack

DEV = "/v1/lake%40dev/namespaces"


def test_grants_hold_on_every_branch(lake: FreshLake) -> None:
    """By uuid: also under another name, for principals of the settings and of the lake; another object of the name is another one."""
    with guard(lake) as guarded:
        managed = Managed(guarded)
        managed.add("ann")
        managed.give("read", "table:a.t", "ann")
        dev = make_branch(lake, "dev").duckdb()
        assert guarded.get("reader", f"{DEV}/a/tables/t").status == guarded.get("admin", "/v1/config?warehouse=lake%40dev").status == 200
        assert managed.statuses("ann", f"{DEV}/a/tables/t", f"{DEV}/a/tables/other", f"{DEV}/b/tables/t") == [200, 404, 404]
        dev.execute("ALTER TABLE a.t RENAME TO renamed")
        dev.execute("CREATE TABLE a.t AS SELECT 1 AS i")
        assert managed.statuses("ann", f"{DEV}/a/tables/renamed", f"{DEV}/a/tables/t", "/v1/lake/namespaces/a/tables/t") == [200, 404, 200]
        managed.take("read", "table:a.t", "ann")
        assert managed.statuses("ann", f"{DEV}/a/tables/renamed", "/v1/lake/namespaces/a/tables/t") == [404, 404]
        managed.give("read", "namespace:a", "ann")
        assert managed.statuses("ann", f"{DEV}/a/tables/renamed", f"{DEV}/a/tables/t") == [200, 200]
        assert managed.ask("ann", "DELETE", f"{DEV}/a/tables/t").error == (403, "NotAuthorizedException")
        assert guarded.ask("writer", "DELETE", f"{DEV}/a/tables/t").status == 204


def test_what_belongs_to_the_lake_is_not_asked_of_a_branch(lake: FreshLake) -> None:
    """Accounts are the lake's; without keys there are no readers of DuckLake either; and nothing is told without a token."""
    with guard(lake) as guarded:
        managed = Managed(guarded)
        managed.add("ann")
        make_branch(lake, "dev")
        for method, path, body in (
            ("GET", "principals", None),
            ("POST", "principals", {"name": "bob"}),
            ("POST", "grants", given("read", "warehouse", "ann")),
        ):
            answer = guarded.ask("admin", method, f"/management/v1/lake%40dev/{path}", body)
            assert answer.error == (400, "BadRequestException"), path
        assert guarded.get("admin", "/v1/lake%40dev/ducklake-credentials").error == (501, "UnsupportedOperationException")
        assert guarded.get("admin", "/v1/lake%40none/namespaces").error == (404, "NoSuchWarehouseException")
        for path in ("/v1/config?warehouse=lake%40dev", DEV, "/v1/lake@dev/namespaces/a/tables"):
            assert guarded.server.get(path).status == 401
        assert managed.manage("DELETE", "principals/ann").status == 204
        assert guarded.server.get(f"{DEV}/a/tables/t", {"Authorization": "Bearer none"}).status == 401
        assert delete_branch(lake.psycopg(), lake.metadata_schema, "dev")
        assert guarded.get("admin", DEV).error == (404, "NoSuchWarehouseException")


@dataclass(frozen=True, slots=True)
class Field:
    """Keys of a.t1 on the branch `dev`, an object of the lake that the branch reads, one of its own, and objects of others."""

    reader: Vended
    writer: Vended
    base: str
    own: str
    location: str
    others: dict[str, str]
    kept: dict[str, str]


@pytest.fixture(scope="module")
def field(stack: SharedStack) -> Generator[Field]:
    """A lake with two branches; a.t1 has more base files than a policy has room for."""
    with make_lake(stack) as lake, guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        yield open_field(guarded)


def open_field(guarded: Guarded) -> Field:
    """Make tables and branches, give out the keys, and list the objects."""
    lake, main, root = guarded.lake, guarded.lake.duckdb(), open_root(guarded)
    main.execute("CALL lake.set_option('data_inlining_row_limit', 0)")
    for table in ("a.t1", "a.t10", "b.t1"):
        main.execute(f"CREATE TABLE {table} (i BIGINT)")
        main.execute(f"INSERT INTO {table} FROM range(100)")
    for first in range(80):
        main.execute(f"INSERT INTO a.t1 VALUES ({first})")
    of_lake = split(guarded.get("admin", "namespaces/a/tables/t1").json["metadata"]["location"])[1]
    dev, other = make_branch(lake, "dev"), make_branch(lake, "other")
    for branch in (dev, other):
        session = branch.duckdb()
        for table in ("a.t1", "a.t10"):
            session.execute(f"INSERT INTO {table} FROM range(100, 200)")
    reader, writer = (load_with_keys(guarded, who, f"{DEV}/a/tables/t1") for who in ("reader", "writer"))
    sibling = split(guarded.get("admin", f"{DEV}/a/tables/t10").json["metadata"]["location"])[1]
    data, of_dev, of_other = (split(each.data_path)[1] for each in (lake, dev, other))
    kept = {"data-of-lake": f"{data}a/t1/", "location-in-lake": f"{of_lake}/", "data-of-branch": f"{of_dev}a/t1/"}
    others = {
        "sibling-in-lake": list_keys(root, f"{data}a/t10/")[0],
        "other-namespace-in-lake": list_keys(root, f"{data}b/t1/")[0],
        "sibling-on-branch": list_keys(root, f"{of_dev}a/t10/")[0],
        "location-of-sibling": list_keys(root, f"{sibling}/")[0],
        "same-table-on-other-branch": list_keys(root, f"{of_other}a/t1/")[0],
        "root": put(root, f"{lake.name}/stray.parquet"),
        "data-root-of-branch": put(root, f"{of_dev}stray.parquet"),
    }
    base, own = list_keys(root, f"{data}a/t1/")[0], list_keys(root, f"{of_dev}a/t1/")[0]
    return Field(reader, writer, base, own, split(reader.metadata["location"])[1], others, kept)


def open_keys(field: Field, who: str) -> Any:
    """The store with somebody's keys."""
    return {"reader": field.reader, "writer": field.writer}[who].s3


WHO = pytest.mark.parametrize("who", ["reader", "writer"])


@pytest.mark.whole
@WHO
def test_keys_read_what_the_branch_and_its_lake_have_of_the_table(field: Field, who: str) -> None:
    """However many files the lake has; keys to write do so at the branch's own location."""
    s3 = open_keys(field, who)
    for key in (field.base, field.own):
        assert s3.get_object(Bucket=BUCKET, Key=key)["Body"].read(4) == b"PAR1"
    prefixes = (field.reader if who == "reader" else field.writer).prefixes
    assert all(any(f"s3://{BUCKET}/{key}".startswith(prefix) for prefix in prefixes) for key in (field.base, field.own))
    key = f"{field.location}/data/new.parquet"
    assert is_refused(s3.put_object, Bucket=BUCKET, Key=key, Body=b"x") == (who == "reader")


@WHO
@pytest.mark.parametrize("place", ["data-of-lake", "location-in-lake", "data-of-branch"])
def test_keys_write_nothing_of_the_lake(field: Field, who: str, place: str) -> None:
    """Neither new objects nor over those that are there; nothing is deleted, and the lake's folders are not listed."""
    s3, folder = open_keys(field, who), field.kept[place]
    assert is_refused(s3.put_object, Bucket=BUCKET, Key=f"{folder}new.parquet", Body=b"x")
    assert is_refused(s3.delete_object, Bucket=BUCKET, Key=f"{folder}none.parquet")
    for key in (field.base, field.own):
        assert is_refused(s3.put_object, Bucket=BUCKET, Key=key, Body=b"x")
        assert is_refused(s3.delete_object, Bucket=BUCKET, Key=key)
    if place != "data-of-branch":
        assert is_refused(s3.list_objects_v2, Bucket=BUCKET, Prefix=folder)


PLACES = [
    *("sibling-in-lake", "other-namespace-in-lake", "sibling-on-branch", "location-of-sibling"),
    *("same-table-on-other-branch", "root", "data-root-of-branch"),
]


@WHO
@pytest.mark.parametrize("place", PLACES)
def test_keys_open_nothing_else(field: Field, who: str, place: str) -> None:
    """Objects of other tables, and of the same table on another branch, are closed."""
    s3, key = open_keys(field, who), field.others[place]
    assert is_refused(s3.get_object, Bucket=BUCKET, Key=key)
    assert is_refused(s3.put_object, Bucket=BUCKET, Key=key, Body=b"x")
    assert is_refused(s3.delete_object, Bucket=BUCKET, Key=key)
    assert is_refused(s3.list_objects_v2, Bucket=BUCKET, Prefix=key.rpartition("/")[0] + "/")
    source = {"Bucket": BUCKET, "Key": key}
    assert is_refused(s3.copy_object, Bucket=BUCKET, Key=f"{field.location}/data/copied.parquet", CopySource=source)


@pytest.mark.whole
def test_a_table_that_the_lake_moves_to_another_namespace_keeps_its_new_files(lake: FreshLake) -> None:
    """Whoever reads it on the branch by a grant on its namespace reads the files that the branch names, and none that came since."""
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        main, root = lake.duckdb(), open_root(guarded)
        main.execute("CREATE TABLE a.moved AS SELECT range AS i FROM range(100)")
        data = f"{split(lake.data_path)[1]}a/moved/"
        [base] = list_keys(root, data)
        make_branch(lake, "dev")
        assert (
            guarded.ask(
                "admin",
                "POST",
                "/v1/lake/tables/rename",
                {"source": {"namespace": ["a"], "name": "moved"}, "destination": {"namespace": ["b"], "name": "moved"}},
            ).status
            == 204
        )
        main.execute("INSERT INTO b.moved FROM range(100, 200)")
        [new] = [key for key in list_keys(root, data) if key != base]
        assert guarded.get("reader", "namespaces/b/tables/moved").status == 404
        keys = load_with_keys(guarded, "reader", f"{DEV}/a/tables/moved").s3
        assert keys.get_object(Bucket=BUCKET, Key=base)["Body"].read(4) == b"PAR1"
        assert is_refused(keys.get_object, Bucket=BUCKET, Key=new)


@pytest.mark.whole
def test_a_branch_of_a_branch_reads_through_both(lake: FreshLake) -> None:
    """Keys open the table's folders on the lake and on the parent; a deleted parent's files are opened one by one."""
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        root = open_root(guarded)
        lake.duckdb().execute("CREATE TABLE a.t1 AS SELECT range AS i FROM range(100)")
        dev = make_branch(lake, "dev")
        dev.duckdb().execute("INSERT INTO a.t1 FROM range(100, 200)")
        make_branch(lake, BranchRequest("child", "dev"))
        files = [list_keys(root, f"{split(side.data_path)[1]}a/t1/")[0] for side in (lake, dev)]
        for is_deleted in (False, True):
            if is_deleted:
                assert delete_branch(lake.psycopg(), lake.metadata_schema, "dev")
            keys = load_with_keys(guarded, "reader", "/v1/lake%40child/namespaces/a/tables/t1").s3
            for key in files:
                assert keys.get_object(Bucket=BUCKET, Key=key)["Body"].read(4) == b"PAR1"
                assert is_refused(keys.put_object, Bucket=BUCKET, Key=key, Body=b"x")


MULTIPLY = """
INSERT INTO ducklake_data_file
SELECT (jsonb_populate_record(f, jsonb_build_object('data_file_id', 1000 + n, 'path', 'copy-' || n || '.parquet',
                                                    'row_id_start', f.row_id_start + 100 * n))).*
  FROM ducklake_data_file f, generate_series(1, 9999) n WHERE f.data_file_id = (SELECT max(data_file_id) FROM ducklake_data_file);
UPDATE ducklake_snapshot SET next_file_id = 20000 WHERE snapshot_id = (SELECT max(snapshot_id) FROM ducklake_snapshot);
UPDATE ducklake_table_stats SET record_count = 1000000, next_row_id = 1000000
 WHERE table_id = (SELECT table_id FROM ducklake_data_file ORDER BY data_file_id DESC LIMIT 1)
"""


@pytest.mark.whole
def test_keys_open_ten_thousand_files_of_the_lake(lake: FreshLake) -> None:
    """By their folder: those of a table, and those that a reader of DuckLake gets; nothing of another table, and nothing to write there."""
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        main, root = lake.duckdb(), open_root(guarded)
        main.execute("CREATE TABLE b.t1 AS SELECT range AS i FROM range(100)")
        main.execute("CREATE TABLE a.t1 AS SELECT range AS i FROM range(100)")
        data = split(lake.data_path)[1]
        [first], [other] = (list_keys(root, f"{data}{schema}/t1/") for schema in ("a", "b"))
        last = f"{data}a/t1/copy-9999.parquet"
        root.copy_object(Bucket=BUCKET, Key=last, CopySource={"Bucket": BUCKET, "Key": first})
        lake.psycopg().execute(MULTIPLY)
        dev = make_branch(lake, "dev")
        dev.duckdb().execute("INSERT INTO a.t1 FROM range(100, 200)")
        [own] = list_keys(root, f"{split(dev.data_path)[1]}a/t1/")
        keys = load_with_keys(guarded, "writer", f"{DEV}/a/tables/t1")
        assert keys.metadata["snapshots"][-1]["summary"]["total-data-files"] == "10001"
        readers = guarded.get("reader", "/v1/lake%40dev/ducklake-credentials").json["storage-credentials"]
        opened = [keys.s3, *(open_vended({**keys.config, **each["config"]}) for each in readers)]
        for key in (first, last, own):
            assert any(not is_refused(s3.get_object, Bucket=BUCKET, Key=key) for s3 in opened[1:]) and not is_refused(
                keys.s3.get_object, Bucket=BUCKET, Key=key
            )
        for s3 in opened:
            assert is_refused(s3.get_object, Bucket=BUCKET, Key=other)
            assert is_refused(s3.put_object, Bucket=BUCKET, Key=f"{data}a/t1/new.parquet", Body=b"x")
