"""Objects that somebody deletes or replaces behind the catalog's back."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from duckicelake.lake.notes import write_repair
from duckicelake.store.objects import Objects, StoreSettings, open_objects
from tests.cli.test_commands import settings_for
from tests.rest.serving import Server, make_settings, serve
from tests.support.commands import run
from tests.support.lakes import FreshLake
from tests.support.tiers import long_after, whole_after
from tests.support.waiting import wait_for

PATH = "namespaces/main/tables/t"
STEPS = (
    "CREATE TABLE t AS SELECT range AS i FROM range(100)",
    "INSERT INTO t VALUES (1000), (1001)",
    "DELETE FROM t WHERE i = 7",
    "DELETE FROM t WHERE i BETWEEN 20 AND 60",
    "CREATE TABLE u AS SELECT range AS i FROM range(10)",
)
MAINTENANCE = {
    "expired": "CALL ducklake_expire_snapshots('lake', older_than => now())",
    "cleaned": "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)",
}
ROWS = 100 + 2 - 1 - 41


@pytest.fixture
def filled(lake: FreshLake) -> FreshLake:
    """A table with a data file, inlined rows, deletes in a file and inlined deletes; and another table."""
    with lake.duckdb() as conn:
        for step in STEPS:
            conn.execute(step)
    return lake


@pytest.fixture
def objects(filled: FreshLake) -> Objects:
    """The store, as we see it."""
    keys = filled.store
    return open_objects(StoreSettings(keys.endpoint, keys.region, keys.access_key_id, keys.secret_access_key))


def count_rows(server: Server, lake: FreshLake) -> int:
    """How many rows PyIceberg reads."""
    keys = {"s3.access-key-id": str(lake.store.access_key_id), "s3.secret-access-key": str(lake.store.secret_access_key)}
    catalog = RestCatalog("door", uri=server.uri, warehouse="lake", **keys)
    try:
        return catalog.load_table("main.t").scan().to_arrow().num_rows
    finally:
        catalog.close()


def delete_under(objects: Objects, folder: str, choose: Callable[[str], bool] = lambda uri: True) -> list[str]:
    """Delete the chosen objects of a folder, and return them."""
    gone = [uri for uri, _ in objects.list_under(folder) if choose(uri)]
    for uri in gone:
        objects.delete(uri)
    return gone


def location_of(server: Server) -> str:
    """Where the table's Iceberg side is."""
    return server.get(PATH).json["metadata"]["location"]


@pytest.mark.parametrize(
    "choose",
    long_after(
        1,
        [
            pytest.param(lambda uri: True, id="everything"),
            pytest.param(lambda uri: "/snap-" in uri, id="manifest lists"),
            pytest.param(lambda uri: uri.endswith(".parquet"), id="derived files"),
            pytest.param(lambda uri: uri.endswith("version-hint.text"), id="version hint"),
        ],
    ),
)
def test_a_running_server_writes_published_objects_again(filled: FreshLake, objects: Objects, choose: Callable[[str], bool]) -> None:
    """Once an operator says so, with the next load and without a restart: the same names, the same answer."""
    with serve(make_settings(filled)) as server:
        before = server.get(PATH)
        gone = delete_under(objects, location_of(server), choose)
        assert gone
        write_repair(filled.psycopg())
        after = server.get(PATH)
        assert {uri for uri, _ in objects.list_under(location_of(server))} >= set(gone)
        assert after.json == before.json
        assert count_rows(server, filled) == ROWS


@pytest.mark.whole
def test_check_names_lost_objects_and_repairs_them(filled: FreshLake, objects: Objects, tmp_path: Path) -> None:
    """Each by its name, with the command that brings it back; other tables are not concerned."""
    settings = settings_for(filled)
    home = ("--home", str(tmp_path / "home"))
    with serve(make_settings(filled)) as server:
        assert server.get("namespaces/main/tables/u").status == 200
        assert server.get(PATH).status == 200
        # The second version makes the first one an entry of the metadata log, which is shortened when the file is gone.
        filled.duckdb().execute("COMMENT ON TABLE t IS 'x'")
        location = location_of(server)
        assert run(tmp_path, "check", *home, settings=settings).status == 0
        gone = delete_under(objects, location)
        found = run(tmp_path, "check", *home, settings=settings)
        newest = max(uri for uri in gone if uri.endswith(".metadata.json"))
        assert found.status == 1
        assert f"error main.t: the published object {newest} is missing. Run `duckicelake check --repair`." in found.out
        assert "main.u" not in found.out
        repaired = run(tmp_path, "check", "--repair", *home, settings=settings)
        assert (repaired.status, "published again: main.t\n" in repaired.out) == (0, True), repaired.out
        older = f"{location}/metadata/v1.metadata.json"
        assert {uri for uri, _ in objects.list_under(location)} == set(gone) - {older}
        assert count_rows(server, filled) == ROWS


@pytest.mark.whole
@pytest.mark.parametrize(
    "loads",
    long_after(
        1,
        [
            pytest.param((), id="not loaded"),
            pytest.param(("expired",), id="loaded before the clean-up"),
            pytest.param(("expired", "cleaned"), id="loaded before and after it"),
        ],
    ),
)
def test_what_expiry_and_clean_up_remove_is_not_missing(lake: FreshLake, tmp_path: Path, loads: tuple[str, ...]) -> None:
    """Clients' data files lie at the table's location too, and manifests go on naming those that a snapshot has deleted."""
    keys = {"s3.access-key-id": str(lake.store.access_key_id), "s3.secret-access-key": str(lake.store.secret_access_key)}
    with serve(make_settings(lake)) as server, closing(RestCatalog("door", uri=server.uri, warehouse="lake", **keys)) as catalog:
        rows = pa.table({"i": pa.array(range(10), pa.int64())})
        table = catalog.create_table("main.t", rows.schema)
        for _ in range(2):
            table.append(rows)
        table.overwrite(rows)
        assert server.get(PATH).status == 200
        conn = lake.duckdb()
        for step in ("expired", "cleaned"):
            conn.execute(MAINTENANCE[step])
            if step in loads:
                assert server.get(PATH).status == 200
        found = run(tmp_path, "check", "--home", str(tmp_path / "home"), settings=settings_for(lake))
        assert (found.status, "all is well" in found.out) == (0, True), found.out
        assert table.refresh().scan().to_arrow().num_rows == 10


@pytest.mark.long
def test_older_metadata_files_that_are_gone_leave_the_log(filled: FreshLake, objects: Objects, tmp_path: Path) -> None:
    """They cannot be made again: `check` names them as a warning, and `--repair` takes them out of the log."""
    settings, home = settings_for(filled), ("--home", str(tmp_path / "home"))
    with serve(make_settings(filled)) as server:
        for number in range(3):
            filled.duckdb().execute(f"INSERT INTO t VALUES ({number})")
            assert server.get(PATH).status == 200
        log = [entry["metadata-file"] for entry in server.get(PATH).json["metadata"]["metadata-log"]]
        assert len(log) == 2
        objects.delete(log[0])
        found = run(tmp_path, "check", *home, settings=settings)
        assert (found.status, f"warning main.t: the metadata log names {log[0]}" in found.out) == (0, True), found.out
        assert run(tmp_path, "check", "--repair", *home, settings=settings).status == 0
        newest, metadata = (server.get(PATH).json[name] for name in ("metadata-location", "metadata"))
        assert [entry["metadata-file"] for entry in metadata["metadata-log"]] == log[1:]
        assert json.loads(objects.read(newest)) == metadata
        assert "all is well" in run(tmp_path, "check", *home, settings=settings).out


def test_a_delete_file_that_is_gone_is_named(filled: FreshLake, objects: Objects) -> None:
    """404 with the word by which Java tells a missing file from a missing table; other tables are served."""
    with serve(make_settings(filled)) as server:
        (gone,) = delete_under(objects, filled.data_path, lambda uri: "-delete" in uri)
        answer = server.get(PATH)
        assert answer.error == (404, "NotFoundException")
        assert gone in answer.json["error"]["message"]
        assert server.get("namespaces/main/tables/u").status == 200
        with filled.duckdb() as conn:
            conn.execute("DROP TABLE t")
        assert server.get(PATH).error == (404, "NoSuchTableException")


def test_a_data_file_that_is_gone_hides_nothing_else(filled: FreshLake, objects: Objects) -> None:
    """The catalog does not read data files: it answers, and reading the table names the file."""
    with serve(make_settings(filled)) as server:
        gone = delete_under(objects, filled.data_path + "main/t/", lambda uri: "-delete" not in uri)
        assert len(gone) == 1
        assert server.get(PATH).status == 200
        with pytest.raises(FileNotFoundError, match=urlsplit(gone[0]).path.rsplit("/", 1)[1]):
            count_rows(server, filled)


@pytest.mark.parametrize("choose", whole_after(1, [lambda uri: True, lambda uri: "/snap-" in uri]), ids=["everything", "manifest lists"])
def test_lost_objects_come_back_by_themselves(filled: FreshLake, objects: Objects, choose: Callable[[str], bool]) -> None:
    """A server looks after what it has published; nobody has to load the table or restart anything."""
    with serve(make_settings(filled, object_check_s=0.2)) as server:
        before = server.get(PATH)
        gone = set(delete_under(objects, location_of(server), choose))
        wait_for(lambda: {uri for uri, _ in objects.list_under(before.json["metadata"]["location"])} >= gone, "the objects are back")
        assert server.get(PATH).json == before.json
        assert count_rows(server, filled) == ROWS


def test_what_cannot_come_back_is_no_longer_promised(filled: FreshLake, objects: Objects) -> None:
    """The answer that was ready for a table is given up when its objects are gone and cannot be made again."""
    with serve(make_settings(filled, object_check_s=0.2)) as server:
        assert server.get(PATH).status == 200
        (gone,) = delete_under(objects, filled.data_path, lambda uri: "-delete" in uri)
        assert server.get(PATH).status == 200
        delete_under(objects, location_of(server))
        wait_for(lambda: server.get(PATH).status != 200, "the answer is given up")
        answer = server.get(PATH)
        assert answer.error == (404, "NotFoundException")
        assert gone in answer.json["error"]["message"]
        assert server.get("namespaces/main/tables/u").status == 200
