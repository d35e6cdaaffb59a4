"""Jobs of accounts that see nothing of a table, or only read it, and of users whom the disk refuses: it is told, and nothing is done."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from duckicelake.embedded.object_store import ROLE_ARN
from tests.catalog.test_many_files import make_copies
from tests.cli.test_commands import settings_for
from tests.pipeline.limits.watched import Watched, obey_permissions, watch
from tests.pipeline.transfer.ferry import Ferry
from tests.rest.auth.principals import Guarded, secret_of
from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.spark import CALM_OPTIONS
from tests.support.tiers import long_but

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
GRANTS = {"reader": "ns:main:r", "stranger": "ns:elsewhere:rw", "admin": "*"}
FILES, MANY = 6, 300
HIDDEN = "main.{}: failed: Table does not exist: main.{}; the lake has it, so perhaps the catalog does not show it to this account"
NO_RIGHT = "The principal 'reader' has no right to do this in the namespace 'main'."
NEEDED = "It needs `write` on `table:main.t`, `namespace:main`, a namespace above it or `warehouse`."
COUNTS = """
SELECT (SELECT max(snapshot_id) FROM ducklake_snapshot), (SELECT count(*) FROM ducklake_snapshot), (SELECT count(*) FROM ducklake_table),
       (SELECT count(*) FROM iceberg_manifest), (SELECT count(*) FROM iceberg_statistics), (SELECT count(*) FROM iceberg_ref)
"""


@pytest.fixture
def guarded(lake: FreshLake) -> Iterator[Guarded]:
    """A table `t` with work for `maintain` and `profile`, and one of many files, on which there is some for `publish`."""
    make_copies(lake, MANY)
    duck = lake.duckdb()
    duck.execute("ALTER TABLE t RENAME TO many")
    duck.execute("CREATE TABLE t (id BIGINT)")
    for number in range(FILES):
        duck.execute(f"INSERT INTO t SELECT range + {number * 100} FROM range(100)")
    duck.execute("INSERT INTO t VALUES (-1)")
    duck.close()
    clients = ",".join(f"{name}:{secret_of(name)}|{grants}" for name, grants in GRANTS.items())
    with serve(make_settings(lake, require_auth=True, oauth_clients=clients, sts_role_arn=ROLE_ARN)) as server:
        yield Guarded(lake, server)


def call(guarded: Guarded, folder: Path, principal: str, *arguments: str) -> Watched:
    """Run a job's command as an account; no secret comes of it."""
    lake, files = (
        guarded.lake,
        ("--home", str(folder / "home"), "--credential-file", str(folder / "me"), "--report", str(folder / "r.json")),
    )
    (folder / "me").write_text(f"{principal}:{secret_of(principal)}\n")
    settings = settings_for(lake, require_auth="true", port=str(guarded.server.port))
    done = watch(folder, *arguments, *files, *CALM_OPTIONS, settings=settings)
    written = done.out + done.err + (folder / "r.json").read_text()
    for secret in (secret_of(principal), lake.store.secret_access_key, str(conninfo_to_dict(lake.dsn)["password"])):
        assert secret not in written
    assert "Traceback" not in written
    assert "\tat " not in written
    return done


def look(lake: FreshLake) -> object:
    """What a job might have changed."""
    return lake.psycopg().execute(COUNTS).fetchone()


@pytest.mark.parametrize(
    ("principal", "told"),
    long_but(
        [
            pytest.param("stranger", (HIDDEN.format("t", "t"), HIDDEN.format("t", "t"), HIDDEN.format("many", "many")), id="sees nothing"),
            pytest.param(
                "reader",
                (
                    f"main.t: flush: failed: {NO_RIGHT} {NEEDED}\nmain.t: compact: failed: {NO_RIGHT} {NEEDED}",
                    f"t: failed: {NO_RIGHT}",
                    f"many: failed: {NO_RIGHT}",
                ),
                id="reads",
            ),
        ],
        "reads",
    ),
)
def test_what_an_account_may_not_change_stays(guarded: Guarded, tmp_path: Path, principal: str, told: tuple[str, ...]) -> None:
    """Said in the server's words, table by table, before Spark is started; nor does DuckDB do what the account may not."""
    before = look(guarded.lake)
    for job, table, words in zip(("maintain", "profile", "publish"), ("t", "t", "many"), told, strict=True):
        done = call(guarded, tmp_path, principal, job, f"main.{table}")
        assert (done.status, words in done.out, done.java_bytes) == (1, True, 0), done.out + done.err
        assert json.loads((tmp_path / "r.json").read_text())["status"] == "failed"
    assert look(guarded.lake) == before


@pytest.mark.long
def test_what_an_account_does_not_see_is_passed_over(guarded: Guarded, tmp_path: Path) -> None:
    """When no table was asked for: it is told, and what it may not change does not expire either."""
    (tmp_path / "policy.toml").write_text('[default]\nsnapshot-age = "0s"\n')
    before = look(guarded.lake)
    for principal, status in (("stranger", 0), ("reader", 1)):
        done = call(guarded, tmp_path, principal, "maintain", "--policy", str(tmp_path / "policy.toml"))
        assert (done.status, done.java_bytes) == (status, 0), done.out + done.err
        assert ("main.t: skipped: Table does not exist" in done.out) == (principal == "stranger"), done.out
        assert look(guarded.lake) == before


@pytest.mark.long
def test_who_sees_no_table_of_a_lake_that_has_some_verifies_nothing(guarded: Guarded, tmp_path: Path) -> None:
    """It is no lake in order, but one that could not be looked at, for whoever waits for the status or the report."""
    done = call(guarded, tmp_path, "stranger", "verify")
    assert (done.status, "the lake has 2 tables, and the catalog shows none of them" in done.err) == (3, True), done.out + done.err
    assert json.loads((tmp_path / "r.json").read_text())["status"] == "could-not-look"


@pytest.mark.long
def test_a_table_that_cannot_be_shown_holds_up_no_account(guarded: Guarded, tmp_path: Path) -> None:
    """Its own snapshots stay, as without one; those of others go."""
    guarded.lake.duckdb().execute("CREATE TABLE odd (id UINT64)")
    (tmp_path / "policy.toml").write_text('[default]\nsnapshot-age = "0s"\nflush-rows = 10000\nmin-files = 1000\n')
    before = look(guarded.lake)
    done = call(guarded, tmp_path, "admin", "maintain", "--policy", str(tmp_path / "policy.toml"))
    assert "expire: failed" not in done.out, done.out
    assert look(guarded.lake) != before, done.out + done.err


@pytest.mark.long
def test_who_may_do_all_does_all(guarded: Guarded, tmp_path: Path) -> None:
    """The look at an account's rights is in nobody's way, and leaves nothing."""
    for job in ("maintain", "profile"):
        done = call(guarded, tmp_path, "admin", job, "main.t")
        assert done.status == 0, done.out + done.err
    assert len(guarded.lake.duckdb().execute("FROM ducklake_list_files('lake', 't')").fetchall()) == 1
    assert look(guarded.lake) is not None


@pytest.mark.long
@pytest.mark.parametrize(
    ("principal", "arguments", "status", "told"),
    [
        pytest.param("stranger", ("ingest", "files", "main.t"), 1, "no right to create the namespace 'main'", id="ingest unseen"),
        pytest.param("reader", ("ingest", "files", "main.t"), 1, NO_RIGHT, id="ingest"),
        pytest.param("reader", ("ingest", "files", "main.new"), 1, NO_RIGHT, id="ingest into a new table"),
        pytest.param("stranger", ("verify", "main.t"), 3, "main.t: could not look: Table does not exist: main.t", id="verify unseen"),
        pytest.param("reader", ("verify", "main.t"), 0, "main.t now: 601 rows, the same", id="verify"),
        pytest.param("stranger", ("export", "out", "main.t"), 1, "main.t: failed: the source has no such table", id="export unseen"),
        pytest.param("reader", ("export", "out", "main.t"), 0, "main.t: copy: done, 601 rows", id="export"),
        pytest.param("stranger", ("import", "out", "--mode", "copy", "--into", "main"), 1, "no right to make", id="import unseen"),
        pytest.param("reader", ("import", "out", "--mode", "copy", "--into", "main"), 1, "no right to make", id="import"),
    ],
)
def test_what_an_account_may_do(
    guarded: Guarded, tmp_path: Path, principal: str, arguments: tuple[str, ...], status: int, told: str
) -> None:
    """Who reads verifies and exports; what it does beyond is refused, and changes nothing."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.csv").write_text("id\n7\n")
    if arguments[0] == "import":
        assert call(guarded, tmp_path, "admin", "export", "out", "main.t").status == 0
    before = look(guarded.lake)
    done = call(guarded, tmp_path, principal, *arguments)
    assert (done.status, told in done.out + done.err) == (status, True), done.out + done.err
    assert look(guarded.lake) == before
    assert guarded.server.get("namespaces/main/tables/new", {"Authorization": f"Bearer {guarded.token('admin')}"}).status == 404


def settings_of(ferry: Ferry) -> dict[str, str]:
    """The settings of a lake on the disk."""
    given = settings_for(ferry.served.lake, port=str(ferry.served.server.port))
    return {name: text for name, text in given.items() if "_S3_" not in name} | {"DUCKICELAKE_STORE": "none"}


@pytest.mark.long
def test_a_table_that_may_not_be_read_keeps_no_other_from_coming(ferry: Ferry, tmp_path: Path) -> None:
    """Of a warehouse: it is named with the system's reason, and comes when it may be read."""
    ferry.run(*(f"CREATE TABLE {{t}}.ns.{name} USING iceberg AS SELECT 1 AS id" for name in ("a", "shut")))
    shut = ferry.folder / "ns" / "shut"
    call, settings = ("import", str(ferry.folder), "--no-verify"), settings_of(ferry)
    shut.chmod(0)
    try:
        done = watch(tmp_path, *call, settings=settings, before=obey_permissions)
    finally:
        shut.chmod(0o755)
    assert (done.status, "ns.a: register: done" in done.out, "Traceback" in done.err) == (1, True, False), done.out + done.err
    assert "ns.shut: failed: cannot list" in done.out
    assert "Permission denied" in done.out
    assert ferry.list_here("ns") == ["a"]
    assert watch(tmp_path, *call, settings=settings, before=obey_permissions).status == 0
    assert ferry.list_here("ns") == ["a", "shut"]


@pytest.mark.long
def test_a_folder_of_files_that_may_not_be_read(ferry: Ferry, tmp_path: Path) -> None:
    """Of Parquet files: no table comes of what Spark was not shown."""
    ferry.ask_duckdb("COPY (SELECT 1 AS id) TO '{}'".format(_make(tmp_path / "hive" / "ns" / "a") / "f.parquet"))
    ferry.ask_duckdb("COPY (SELECT 2 AS id) TO '{}'".format(_make(tmp_path / "hive" / "ns" / "shut") / "f.parquet"))
    shut = tmp_path / "hive" / "ns" / "shut"
    call = ("import", str(tmp_path / "hive"), "--format", "hive", "--mode", "copy")
    shut.chmod(0)
    try:
        done = watch(tmp_path, *call, settings=settings_of(ferry), before=obey_permissions)
    finally:
        shut.chmod(0o755)
    assert (done.status, "shut" in done.out + done.err, "denied" in done.out + done.err) == (1, True, True), done.out + done.err
    assert "Traceback" not in done.err
    assert "shut" not in ferry.list_here("ns")
    assert watch(tmp_path, *call, settings=settings_of(ferry), before=obey_permissions).status == 0
    assert ferry.list_here("ns") == ["a", "shut"]


@pytest.mark.long
def test_a_target_that_may_not_be_written(ferry: Ferry, tmp_path: Path) -> None:
    """Of an export: the message has the folder and the system's reason, and nothing is left there."""
    ferry.ask_duckdb("CREATE TABLE t AS SELECT 1 AS id")
    target = _make(tmp_path / "target")
    target.chmod(0o555)
    try:
        done = watch(tmp_path, "export", str(target), "main.t", settings=settings_of(ferry), before=obey_permissions)
    finally:
        target.chmod(0o755)
    assert (done.status, f"main.t: failed: cannot write {target}" in done.out, "Traceback" in done.err) == (1, True, False), (
        done.out + done.err
    )
    assert "Permission denied" in done.out
    assert list(target.iterdir()) == []


def _make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
