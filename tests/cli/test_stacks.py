"""`serve` on stacks that are not all its own: started before, on files, on a Postgres and S3 of yours."""

import json
from pathlib import Path

import pytest

from duckicelake.embedded.home import find_holder, open_home
from tests.support.commands import Server, find_port, is_running, run, serving
from tests.support.lakes import FreshLake
from tests.support.waiting import wait_for


@pytest.mark.whole
def test_backends_run_without_a_server_and_a_server_joins_them(tmp_path: Path) -> None:
    """`up` returns when they answer, `serve` uses them and leaves them running, `down` ends them."""
    home = ("--home", str(tmp_path / "home"))
    up = run(tmp_path, "backends", "up", *home)
    assert up.status == 0, up.err
    try:
        holder = find_holder(open_home(tmp_path / "home"))
        assert holder is not None
        assert f"pid {holder[0]}" in up.out
        assert run(tmp_path, "duckdb", *home, "-c", "CREATE TABLE t AS SELECT 1 AS i").status == 0
        with serving(tmp_path / "home", find_port()) as server:
            assert server.fetch("/v1/lake/namespaces/main/tables/t")[0] == 200
            assert server.stop() == 0
        assert is_running(holder[0])
        assert run(tmp_path, "backends", "up", *home).status == 0
        assert find_holder(open_home(tmp_path / "home")) == holder
    finally:
        down = run(tmp_path, "backends", "down", *home)
    assert down.out == "Postgres and S3 are stopped.\n"
    wait_for(lambda: not is_running(holder[0]), "the end of the backends")
    assert run(tmp_path, "backends", "down", *home).out == "Nothing was running.\n"


@pytest.mark.long
def test_a_lake_on_files_needs_no_s3(tmp_path: Path) -> None:
    """With a folder as data path only Postgres is started; other clients read the same rows."""
    (tmp_path / "duckicelake.toml").write_text(f'data_path = "{tmp_path}/lake/data/"\nlog_format = "json"\n')
    home = ("--home", str(tmp_path / "home"))
    with serving(tmp_path / "home", find_port()) as server:
        assert server.find_pid("postgres") is not None
        assert server.find_pid("s3") is None
        smoked = run(tmp_path, "smoke", *home)
        assert smoked.status == 0, smoked.out + smoked.err
        facts = json.loads(run(tmp_path, "connect", *home, "--format", "json").out)
        assert (facts["s3.endpoint"], facts["iceberg_path"]) == (None, f"{tmp_path}/lake/iceberg/")
        assert list((tmp_path / "lake" / "iceberg").rglob("*.metadata.json"))
        check_json_log(server)


def check_json_log(server: Server) -> None:
    """Every line that is no welcome is one JSON object with a time, a level, a logger and a message."""
    server.wait_announced()
    lines = [json.loads(line) for line in server.log().splitlines() if line.startswith('{"')]
    assert {"time", "level", "logger", "message"} <= set(lines[0])
    assert "Postgres is ready" in [line["message"] for line in lines]
    assert not [line for line in server.log().splitlines() if " INFO " in line]


@pytest.mark.whole
def test_several_servers_share_a_lake_of_yours(lake: FreshLake, tmp_path: Path) -> None:
    """With your Postgres and S3 nothing is started, homes are not locked, and both servers see the same table."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS i FROM range(100)")
    (tmp_path / "duckicelake.toml").write_text(
        f'metadata_schema = "lake"\npostgres_dsn = "{lake.dsn}"\ns3_endpoint = "{lake.store.endpoint}"\n'
        f's3_access_key_id = "{lake.store.access_key_id}"\ns3_secret_access_key = "{lake.store.secret_access_key}"\n'
        "[lakes.first]\n[lakes.second]\n"
    )
    home, port = tmp_path / "home", find_port()
    with serving(home, port) as one, serving(home, port + 1) as other:
        assert not (home / "postgres").exists()
        loaded = [server.fetch(f"/v1/{name}/namespaces/main/tables/t") for server in (one, other) for name in ("first", "second")]
        assert {status for status, _ in loaded} == {200}
        assert len({body["metadata"]["table-uuid"] for _, body in loaded}) == 1
        assert len({body["metadata-location"] for _, body in loaded}) == 1
        which = run(tmp_path, "connect", "--home", str(home))
        assert (which.status, "Name one of these warehouses with --warehouse: first, second" in which.err) == (1, True)
        smoked = run(tmp_path, "smoke", "--home", str(home), "--warehouse", "first")
        assert smoked.status == 0, smoked.out + smoked.err
    assert not (home / "server.json").exists()
