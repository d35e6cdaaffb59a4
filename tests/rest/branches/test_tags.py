"""Tags of a whole lake: snapshots that stay, served read-only as `lake@tag` and `lake@<snapshot id>`."""

import asyncio
from contextlib import AsyncExitStack, closing
from functools import partial
from pathlib import Path

import duckdb
import pytest
from pyiceberg.exceptions import ForbiddenError

from duckicelake.app import open_branch, open_lake, read_limits
from duckicelake.embedded.object_store import ROLE_ARN
from duckicelake.errors import AlreadyExists, BadRequest, NoSuchWarehouse, ServiceUnavailable
from duckicelake.lake.branches.create import BranchRequest
from duckicelake.lake.branches.delete import delete_branch
from duckicelake.lake.branches.registry import Branch, list_branches, rename_branch
from duckicelake.rest.branch_lakes import BranchLakes
from duckicelake.rest.context import OpenLake
from tests.cli.test_branches import ask
from tests.cli.test_commands import settings_for
from tests.lake.branches.repository import as_lake, fill, maintain, make_branch, read_head, read_rows
from tests.rest.auth.escapes.ground import BUCKET
from tests.rest.auth.principals import guard
from tests.rest.auth.rules.managed import Managed
from tests.rest.auth.vended import is_refused, load_with_keys, split
from tests.rest.branches.test_rights import BRANCHES, DENIED, NEW_TABLE, PROPERTY, TAGS
from tests.rest.branches.test_served import IDENT, list_ids, make_rows, open_catalog, read_ids
from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake

TAG = "/v1/lake%40v1/namespaces"


def list_snapshots(lake: FreshLake) -> list[int]:
    """The snapshots that DuckLake has."""
    return [row[0] for row in lake.psycopg().execute("SELECT snapshot_id FROM ducklake_snapshot ORDER BY 1").fetchall()]


@pytest.mark.whole
def test_a_tagged_snapshot_stays_whatever_expires(lake: FreshLake) -> None:
    """On the lake by time travel, and by the tag; when the tag is deleted it goes with the next expiry."""
    main = lake.duckdb()
    fill(main)
    head, rows = read_head(lake), read_rows(lake, "t")
    tag = make_branch(lake, BranchRequest("v1", is_tag=True))
    # Not the lowest: a rewrite narrows the bounds of the table, by which DuckDB 1.5.5 then sorts older snapshots wrongly.
    main.execute("DELETE FROM t WHERE id BETWEEN 50 AND 199")
    main.execute("INSERT INTO t SELECT i, 'x' FROM range(5000, 5050) r(i)")
    main.execute("DROP TABLE s.parts")
    now = read_rows(lake, "t")
    for _ in range(2):
        maintain(lake)
        assert head in list_snapshots(lake) and len(list_snapshots(lake)) == 2
        assert read_rows(tag, "t") == read_rows(lake, "t", head) == rows
        assert len(read_rows(tag, "s.parts")) == len(read_rows(lake, "s.parts", head)) == 60
        assert read_rows(lake, "t") == now
    assert delete_branch(lake.psycopg(), lake.metadata_schema, "v1", is_tag=True)
    maintain(lake)
    assert head not in list_snapshots(lake)
    assert read_rows(lake, "t") == now


def test_an_expiry_that_cannot_see_the_tag_fails(lake: FreshLake) -> None:
    """It began before the tag was made, and Postgres makes it begin again."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(100)")
    make_branch(lake, "first")
    late = lake.psycopg(autocommit=False)
    late.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    late.execute("SELECT count(*) FROM ducklake_snapshot")
    make_branch(lake, BranchRequest("v1", is_tag=True))
    with pytest.raises(Exception, match="could not serialize"):
        late.execute("DELETE FROM ducklake_snapshot WHERE snapshot_id = 1")


@pytest.mark.whole
def test_a_tag_of_a_branch_stays_too(lake: FreshLake) -> None:
    """The branch's expiry leaves the snapshot, and the tag outlives the branch."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(100)")
    dev = make_branch(lake, "dev")
    with closing(dev.duckdb()) as session:
        session.execute("INSERT INTO t FROM range(100, 200)")
        tag, head = make_branch(lake, BranchRequest("v1", "dev", is_tag=True)), read_head(dev)
        session.execute("DELETE FROM t")
    maintain(dev)
    assert len(read_rows(dev, "t", head)) == len(read_rows(tag, "t")) == 200
    assert delete_branch(lake.psycopg(), lake.metadata_schema, "dev")
    maintain(lake)
    assert len(read_rows(tag, "t")) == 200


def test_duckdb_changes_no_tag(lake: FreshLake) -> None:
    """Neither by a commit nor by maintenance; a branch made of the tag is changed."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(100)")
    tag = make_branch(lake, BranchRequest("v1", is_tag=True))
    with closing(tag.duckdb()) as session:
        for statement in (
            "INSERT INTO t VALUES (1)",
            "DELETE FROM t WHERE id = 3",
            "CREATE TABLE u (i INTEGER)",
            "CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)",
        ):
            with pytest.raises(duckdb.Error, match="a tag is read-only"):
                session.execute(statement)
    assert len(read_rows(tag, "t")) == 100
    with closing(make_branch(lake, BranchRequest("dev", "v1")).duckdb()) as session:
        session.execute("INSERT INTO t FROM range(100, 150)")
        assert session.execute("SELECT count(*) FROM t").fetchone() == (150,)


def test_iceberg_clients_read_a_tag_by_its_name_and_by_its_snapshot(lake: FreshLake) -> None:
    """Every commit is a 403 that says what to do, and changes nothing; snapshots without a tag are no warehouse."""
    with serve(make_settings(lake)) as server:
        main = open_catalog(server, lake, "lake")
        main.create_namespace("ns")
        main.create_table(IDENT, make_rows(0, 1).schema).append(make_rows(0, 100))
        head = read_head(lake)
        make_branch(lake, BranchRequest("v1", is_tag=True))
        main.load_table(IDENT).overwrite(make_rows(500, 10))
        maintain(lake)
        for warehouse in ("lake@v1", f"lake@{head}"):
            tag = open_catalog(server, lake, warehouse)
            assert read_ids(tag) == list(range(100))
            for change in (
                lambda tag=tag: tag.load_table(IDENT).append(make_rows(0, 1)),
                lambda tag=tag: tag.create_namespace("other"),
                lambda tag=tag: tag.drop_table(IDENT),
                lambda tag=tag: tag.rename_table(IDENT, ("ns", "u")),
            ):
                with pytest.raises(ForbiddenError, match="make a branch of it"):
                    change()
            assert read_ids(tag) == list(range(100))
        assert server.get(f"/v1/config?warehouse=lake%40{head + 1000}").error == (404, "NoSuchWarehouseException")
        assert read_ids(main) == list(range(500, 510))


def test_accounts_read_tags_alone(lake: FreshLake) -> None:
    """Whatever they may elsewhere, with keys to read at most."""
    with guard(lake) as guarded:
        make_branch(lake, BranchRequest("v1", is_tag=True))
        Managed(guarded).add("ann")
        assert guarded.get("reader", f"{TAG}/a/tables/t").status == 200
        assert guarded.get("stranger", f"{TAG}/a/tables/t").status == 404
        for path, body in (("a/tables", NEW_TABLE), ("a/tables/t", PROPERTY)):
            assert guarded.ask("admin", "POST", f"{TAG}/{path}", body).error == DENIED
        assert guarded.get("admin", "/management/v1/repositories/lake/branches").json == {"branches": []}


def test_tags_are_made_listed_and_deleted(lake: FreshLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command line; a name is a tag's or a branch's."""
    monkeypatch.chdir(tmp_path)
    settings, home = settings_for(lake), ("--home", str(tmp_path / "home"))
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(20)")
    assert "no tags" in ask(settings, "tag", "list", *home)
    assert "warehouse lake@v1" in ask(settings, "tag", "create", "v1", *home)
    assert "snapshot 0" in ask(settings, "tag", "create", "empty", "--at", "0", *home)
    assert [line.partition(":")[0] for line in ask(settings, "tag", "list", *home).splitlines()] == ["v1", "empty"]
    assert "no branches" in ask(settings, "branch", "list", *home)
    with pytest.raises(AlreadyExists):
        ask(settings, "branch", "create", "V1", *home)
    with pytest.raises(BadRequest, match="is a tag"):
        ask(settings, "branch", "delete", "v1", *home)
    for name in ("v1", "empty"):
        assert f"tag {name} is deleted" in ask(settings, "tag", "delete", name, *home)
    with pytest.raises(BadRequest, match="does not exist"):
        ask(settings, "tag", "delete", "v1", *home)


def list_tags(lake: FreshLake) -> list[str]:
    """The names of the tags that Postgres has."""
    return [branch.name for branch in list_branches(lake.psycopg())]


def test_snapshots_without_a_tag_are_read(lake: FreshLake) -> None:
    """By their ids, as of then: tables, scan plans, `t@17`. Commits are 403, and what shows the snapshot goes with the server."""
    session = lake.duckdb()
    session.execute("CALL lake.set_option('data_inlining_row_limit', 0)")
    session.execute("CREATE TABLE t AS SELECT range AS id FROM range(3)")
    session.execute("CREATE TABLE gone AS SELECT 7 AS id")
    then = read_head(lake)
    session.execute("DROP TABLE gone")
    session.execute("ALTER TABLE t ADD COLUMN more INTEGER")
    session.execute("INSERT INTO t VALUES (100, 1)")
    with serve(make_settings(lake)) as server:
        path = f"/v1/lake%40{then}/namespaces/main/tables"
        assert [each["name"] for each in server.get(path).json["identifiers"]] == ["gone", "t"]
        shown = open_catalog(server, lake, f"lake@{then}")
        assert sorted(shown.load_table(("main", "t")).scan().to_arrow()["id"].to_pylist()) == [0, 1, 2]
        assert shown.load_table(("main", "gone")).scan().to_arrow()["id"].to_pylist() == [7]
        plan = server.ask("POST", f"{path}/t/plan", {"Content-Type": "application/json"}, b"{}").json
        assert plan["status"] == "completed" and len(plan["file-scan-tasks"]) == 1
        main = open_catalog(server, lake, "lake")
        assert len(main.load_table(("main", f"t@{then}")).scan().to_arrow()) == 3
        assert server.get(f"/v1/lakefs/namespaces/{then}%1Fmain/tables/gone").status == 200
        for change in (
            lambda: shown.load_table(("main", "t")).delete("id = 1"),
            lambda: shown.drop_table(("main", "t")),
            lambda: main.drop_table(("main", f"t@{then}")),
        ):
            with pytest.raises(ForbiddenError, match=f"Snapshot {then} of the lake is read-only"):
                change()
        with pytest.raises(duckdb.Error, match="a tag is read-only"):
            as_lake(lake, list_branches(lake.psycopg())[0]).duckdb().execute("INSERT INTO t VALUES (1)")
        # What is read stays, also through an expiry of everything.
        maintain(lake)
        assert len(shown.load_table(("main", "t")).scan().to_arrow()) == 3
        assert list_tags(lake) == [str(then)]
        for none in ("99999999", str(2**63), "0" * 30):
            assert server.get(f"/v1/config?warehouse=lake%40{none}").error == (404, "NoSuchWarehouseException")
    assert list_tags(lake) == []
    assert list_ids(lake, "t") == [0, 1, 2, 100]


def test_snapshots_that_are_not_read_are_closed(lake: FreshLake) -> None:
    """At once if too many others are read, the one that was not asked for longest first; and after a while."""
    session = lake.duckdb()
    session.execute("CREATE TABLE t (id INTEGER)")
    settings = make_settings(lake)

    async def read() -> None:
        async with AsyncExitStack() as opened:
            [told] = settings.lakes()
            parent = await open_lake(told, read_limits(settings), opened, vends=False)
            branches = BranchLakes(partial(open_branch, settings))
            opened.push_async_callback(branches.close)
            for snapshot_id in (1, 0):
                await branches.check(parent, f"lake@{snapshot_id}")
            await branches.check(parent, "lake@1")
            await branches.close_idle(1000)
            assert list_tags(lake) == ["1", "0"]
            async with branches.using("lake@1"):
                await branches.close_idle(0)
                assert list_tags(lake) == ["1"] and branches.find("lake@1") is not None
            with pytest.raises(NoSuchWarehouse):
                await branches.check(parent, "lake@0", opens_snapshots=False)
            # The tag that somebody makes is taken instead.
            make_branch(lake, BranchRequest("v1", at=1, is_tag=True))
            await branches.check(parent, "lake@1")
            assert list_tags(lake) == ["v1"]

    asyncio.run(read())
    assert list_tags(lake) == ["v1"]


async def open_branches(lake: FreshLake, opened: AsyncExitStack) -> tuple[OpenLake, BranchLakes]:
    """A lake as a server opens it, and its branches."""
    settings = make_settings(lake)
    [told] = settings.lakes()
    parent = await open_lake(told, read_limits(settings), opened, vends=False)
    branches = BranchLakes(partial(open_branch, settings))
    opened.push_async_callback(branches.close)
    return parent, branches


def test_the_last_server_that_shows_a_snapshot_deletes_its_tag(lake: FreshLake) -> None:
    """A server that stops leaves the tag to those that show it still, and published metadata with it; killed servers do not count."""
    lake.duckdb().execute("CREATE TABLE t (id INTEGER)")

    async def read() -> None:
        async with AsyncExitStack() as opened:
            [(parent, first), (_, second)] = [await open_branches(lake, opened) for _ in range(2)]
            await first.check(parent, "lake@1")
            [tag] = list_branches(lake.psycopg())
            await second.check(parent, "lake@1")
            left = "INSERT INTO iceberg_branch_reader (number, server, seen_at) VALUES (%s, 'killed', now() - interval '1 hour')"
            lake.psycopg().execute(left, (tag.number,))
            await first.close()
            assert list_branches(lake.psycopg()) == [tag]
            await second.note_shown()
            await second.check(parent, "lake@1")
            shown = second.find("lake@1")
            await second.close_idle(0)
            assert shown is not None and list_tags(lake) == []

    asyncio.run(read())


def test_a_snapshot_that_cannot_be_opened_leaves_no_tag(lake: FreshLake) -> None:
    """The next expiry would keep the snapshot for it."""
    lake.duckdb().execute("CREATE TABLE t (id INTEGER)")

    async def fail(_: OpenLake, __: Branch, opened: AsyncExitStack) -> OpenLake:
        raise ServiceUnavailable("Postgres is away.")

    async def read() -> None:
        async with AsyncExitStack() as opened:
            parent, _ = await open_branches(lake, opened)
            with pytest.raises(ServiceUnavailable):
                await BranchLakes(fail).check(parent, "lake@1")
            assert list_tags(lake) == []
            assert lake.psycopg().execute("SELECT count(*) FROM iceberg_branch_reader").fetchone() == (0,)

    asyncio.run(read())


@pytest.mark.whole
def test_a_tag_that_a_server_of_another_version_shows_stays(lake: FreshLake) -> None:
    """In a rolling restart two versions show snapshots. When the other one is gone, the tag is made again."""
    lake.duckdb().execute("CREATE TABLE t (id INTEGER)")
    conn = lake.psycopg()

    async def read() -> None:
        async with AsyncExitStack() as opened:
            [(parent, first), (_, second)] = [await open_branches(lake, opened) for _ in range(2)]
            await first.check(parent, "lake@1")
            [tag] = list_branches(conn)
            conn.execute(f"""UPDATE "{tag.schema_name}".iceberg_setting SET value = 'other' WHERE key = 'made_by'""".encode())
            with pytest.raises(ServiceUnavailable, match="another version"):
                await second.check(parent, "lake@1")
            assert list_branches(conn) == [tag]
            conn.execute("UPDATE iceberg_branch_reader SET seen_at = now() - interval '1 hour'")
            await second.check(parent, "lake@1")
            [made] = list_branches(conn)
            assert made.number != tag.number

    asyncio.run(read())


def test_what_is_not_shown_closes_no_other_snapshot(lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that no snapshot has are refused before room is made for them."""
    session = lake.duckdb()
    session.execute("CREATE TABLE t (id INTEGER)")
    monkeypatch.setattr("duckicelake.rest.branch_lakes.MAX_SNAPSHOTS", 1)

    async def read() -> None:
        async with AsyncExitStack() as opened:
            parent, branches = await open_branches(lake, opened)
            await branches.check(parent, "lake@1")
            with pytest.raises(NoSuchWarehouse):
                await branches.check(parent, "lake@999")
            assert branches.find("lake@1") is not None and list_tags(lake) == ["1"]
            await branches.check(parent, "lake@0")
            assert branches.find("lake@1") is None and list_tags(lake) == ["0"]

    asyncio.run(read())


@pytest.mark.whole
def test_a_snapshot_whose_last_tag_is_still_read_is_shown_again(lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets another tag, in a schema of its own; the former one's is dropped when nothing reads it."""
    lake.duckdb().execute("CREATE TABLE t (id INTEGER)")
    monkeypatch.setattr("duckicelake.lake.branches.registry.AWAITED_MS", 50)

    async def read() -> None:
        async with AsyncExitStack() as opened:
            parent, branches = await open_branches(lake, opened)
            await branches.check(parent, "lake@1")
            (former,) = list_branches(lake.psycopg())
            reader = lake.psycopg(autocommit=False)
            reader.execute(f'SELECT FROM "{former.schema_name}".ducklake_snapshot'.encode())
            await branches.close_idle(0)
            await branches.check(parent, "lake@1")
            (shown,) = list_branches(lake.psycopg())
            assert shown.schema_name != former.schema_name
            reader.rollback()

    asyncio.run(read())


@pytest.mark.whole
def test_branches_are_closed_when_they_are_gone_or_idle(lake: FreshLake) -> None:
    """Also if no request names them again; one that is used stays."""
    conn, schema = lake.psycopg(), lake.metadata_schema
    for name in ("renamed", "deleted", "idle", "used"):
        make_branch(lake, name)

    async def read() -> None:
        async with AsyncExitStack() as opened:
            parent, branches = await open_branches(lake, opened)
            prefixes = ("lake@renamed", "lake@deleted", "lake@idle", "lake@used")
            for prefix in prefixes:
                await branches.check(parent, prefix)
            rename_branch(conn, schema, "renamed", "other")
            delete_branch(conn, schema, "deleted")
            await branches.close_idle(1000)
            assert [branches.find(prefix) is not None for prefix in prefixes] == [False, False, True, True]
            async with branches.using("lake@used"):
                await branches.close_idle(0)
                assert [branches.find(prefix) is not None for prefix in prefixes] == [False, False, False, True]

    asyncio.run(read())


@pytest.mark.whole
def test_a_snapshot_that_waits_for_the_lake_holds_up_no_branch(lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch is opened meanwhile; and the snapshot is given up soon, to be asked for again."""
    lake.duckdb().execute("CREATE TABLE t (id INTEGER)")
    make_branch(lake, "dev")
    monkeypatch.setattr("duckicelake.catalog.repositories.SNAPSHOT_TRIES", 3)

    async def read() -> None:
        async with AsyncExitStack() as opened:
            parent, branches = await open_branches(lake, opened)
            holder = lake.psycopg(autocommit=False)
            holder.execute("LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE")
            waiting = asyncio.create_task(branches.check(parent, "lake@1"))
            blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'ducklake_snapshot'::regclass"
            watcher = lake.psycopg()
            while watcher.execute(blocked).fetchone() == (0,):
                await asyncio.sleep(0)
            await branches.check(parent, "lake@dev")
            assert not waiting.done()
            with pytest.raises(ServiceUnavailable):
                await waiting
            holder.rollback()
            await branches.check(parent, "lake@1")

    asyncio.run(read())


@pytest.mark.whole
def test_only_managers_read_snapshots_without_a_tag(lake: FreshLake) -> None:
    """They show what was there then by the grants of today. With a tag, the grants alone decide."""
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        head = read_head(lake)
        lake.duckdb().execute("INSERT INTO a.t VALUES (1)")
        path, config = f"/v1/lake%40{head}/namespaces/a/tables/t", f"/v1/config?warehouse=lake%40{head}"
        for asked in (path, config, f"/v1/lake/namespaces/a/tables/t%40{head}"):
            assert guarded.get("reader", asked).status == 404
        assert list_tags(lake) == []
        assert guarded.get("admin", config).status == guarded.get("admin", path).status == 200
        assert list_tags(lake) == [str(head)]
        keys = load_with_keys(guarded, "admin", path)
        assert is_refused(keys.s3.put_object, Bucket=BUCKET, Key=f"{split(keys.metadata['location'])[1]}/data/new.parquet", Body=b"x")
        assert guarded.get("reader", path).error == DENIED
        managed = Managed(guarded)
        managed.add("ann")
        managed.give("read", "namespace:a", "ann")
        managed.give("create", "branch:dev-*", "ann")
        for made in (BRANCHES, TAGS):
            assert managed.ask("ann", "POST", made, {"name": "dev-x", "from": str(head)}).error == DENIED
        assert managed.ask("ann", "GET", TAGS).json == {"tags": []}
        assert [each["name"] for each in guarded.get("admin", TAGS).json["tags"]] == [str(head)]
        make_branch(lake, BranchRequest("v1", at=head, is_tag=True))
        assert guarded.get("reader", path).status == 200
        assert guarded.get("stranger", path).status == 404
