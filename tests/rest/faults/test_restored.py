"""A Postgres that was put back to an older backup, while the store has what was published since."""

import json
from pathlib import Path

import pytest

from duckicelake.store.objects import StoreSettings, open_objects
from tests.cli.test_commands import settings_for
from tests.rest.serving import make_settings, serve
from tests.support.commands import run
from tests.support.lakes import FreshLake, clone_lake
from tests.support.shared_stack import SharedStack

PATH = "namespaces/main/tables/t"


def change_and_load(lake: FreshLake, *statements: str) -> tuple[str, dict[str, object]]:
    """Run statements in DuckDB, load the table, and return its metadata file and its metadata."""
    with lake.duckdb() as conn:
        for statement in statements:
            conn.execute(statement)
    with serve(make_settings(lake)) as server:
        loaded = server.get(PATH).json
    return loaded["metadata-location"], loaded["metadata"]


@pytest.mark.whole
def test_check_repair_after_a_restore(stack: SharedStack, lake: FreshLake, tmp_path: Path) -> None:
    """`check` names metadata files of the lost time, `--repair` replaces them, published since or not; clients' data files stay."""
    keys = lake.store
    objects = open_objects(StoreSettings(keys.endpoint, keys.region, keys.access_key_id, keys.secret_access_key))
    change_and_load(lake, "CREATE TABLE t AS SELECT range AS i FROM range(100)")
    lake.opened.close()
    with clone_lake(stack, lake) as restored:
        change_and_load(lake, "INSERT INTO t VALUES (1)")
        change_and_load(lake, "INSERT INTO t VALUES (2)")
        lost, _ = change_and_load(lake, "INSERT INTO t VALUES (3)")
        first, _ = change_and_load(restored, "INSERT INTO t VALUES (4), (5)")
        newest, metadata = change_and_load(restored, "INSERT INTO t VALUES (6), (7)")
        data_file = f"{metadata['location']}/data/a-client-wrote-it.parquet"
        objects.put_new(data_file, b"")
        settings, home = settings_for(restored), ("--home", str(tmp_path / "home"))
        found = run(tmp_path, "check", *home, settings=settings)
        assert found.status == 1
        assert f"error main.t: {newest} shows another state than the lake has had" in found.out
        assert f"error main.t: {lost} shows another state than the lake has had" in found.out
        repaired = run(tmp_path, "check", "--repair", *home, settings=settings)
        assert (repaired.status, "all is well" in repaired.out) == (0, True), repaired.out
        again, shown = change_and_load(restored)
        assert again == newest
        assert json.loads(objects.read(newest)) == shown
        assert {**shown, "metadata-log": metadata["metadata-log"]} == metadata
        assert objects.exists(data_file)
        assert not objects.exists(first), "it showed rows that were never in this lake"
        assert first not in json.dumps(shown["metadata-log"])
        location, metadata = change_and_load(restored, "INSERT INTO t VALUES (8)")
        assert location == lost
        assert json.loads(objects.read(location)) == metadata
