"""The other commands, on lakes that somebody else runs."""

import json
import tomllib
from pathlib import Path

import duckdb
import psycopg
import pytest
from typer.testing import CliRunner

from duckicelake.cli import build_cli
from duckicelake.commands.prepare import get_default_iceberg_path
from duckicelake.config import SettingsError
from duckicelake.embedded.ducklake import LakeAddress, create_lake, format_attach
from tests.lake.branches.repository import make_branch
from tests.support.commands import run
from tests.support.keys import format_s3_keys
from tests.support.lakes import FreshLake
from tests.support.shared_stack import ROOT, SharedStack
from tests.support.tiers import long_after, whole_after


def settings_for(lake: FreshLake, **more: str) -> dict[str, str]:
    """Return the environment that points the commands at a lake."""
    settings = {
        "postgres_dsn": lake.dsn,
        "metadata_schema": lake.metadata_schema,
        "s3_endpoint": lake.store.endpoint,
        "s3_access_key_id": lake.store.access_key_id,
        "s3_secret_access_key": lake.store.secret_access_key,
    }
    return {f"DUCKICELAKE_{name.upper()}": text for name, text in (settings | more).items()}


@pytest.fixture
def foreign(lake: FreshLake) -> FreshLake:
    """A lake made by plain DuckDB with default options, in schema `public`, that we have never seen."""
    lake.metadata_schema, lake.data_path = "public", lake.data_path.replace("/data/", "/theirs/")
    create_lake(lake.extension_folder, LakeAddress(lake.dsn, "public", lake.data_path), format_s3_keys(lake.store))
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t AS SELECT range AS i FROM range(100)")
    conn.execute("INSERT INTO t VALUES (1000)")
    conn.execute("DELETE FROM t WHERE i = 5")
    conn.close()
    return lake


def dump_ducklake(lake: FreshLake) -> dict[str, list[tuple[object, ...]]]:
    """Return every row of DuckLake's own tables."""
    conn = lake.psycopg()
    names = conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename LIKE 'ducklake%' ORDER BY 1").fetchall()
    return {name: conn.execute(f'SELECT * FROM public."{name}" ORDER BY 1::text'.encode()).fetchall() for (name,) in names}


@pytest.mark.whole
def test_init_adopts_a_lake_and_duckdb_sees_no_difference(foreign: FreshLake, tmp_path: Path) -> None:
    """Its rows stay byte for byte, DuckDB goes on writing, and ICEBERG_PATH lies beside DATA_PATH."""
    before = dump_ducklake(foreign)
    assert len(before) >= 28
    done = run(tmp_path, "init", "--home", str(tmp_path / "home"), settings=settings_for(foreign))
    assert done.status == 0, done.err
    assert dump_ducklake(foreign) == before
    assert "theirs-iceberg/" in done.out
    conn = foreign.duckdb()
    conn.execute("INSERT INTO t SELECT range FROM range(50)")
    assert conn.sql("SELECT count(*) FROM t").fetchone() == (150,)
    again = run(tmp_path, "init", "--home", str(tmp_path / "home"), settings=settings_for(foreign))
    assert again.status == 0, again.err


@pytest.mark.whole
def test_init_makes_a_lake_where_there_is_none(lake: FreshLake, tmp_path: Path) -> None:
    """A data path is all it takes; without one the message names the schema that has a lake."""
    make_branch(lake, "dev")
    settings = settings_for(lake, metadata_schema="fresh")
    refused = run(tmp_path, "init", "--home", str(tmp_path / "home"), settings=settings)
    assert refused.status == 1
    assert "no DuckLake in schema 'fresh'" in refused.err
    assert "There is one in schema lake: " in refused.err
    data_path = f"{tmp_path}/new/data/"
    done = run(tmp_path, "init", "--home", str(tmp_path / "home"), settings=settings | {"DUCKICELAKE_DATA_PATH": data_path})
    assert done.status == 0, done.err
    assert f"{tmp_path}/new/iceberg/" in done.out
    assert "it has DuckLake 1.0, for DuckDB 1.5; `duckicelake lake migrate --dry-run` says how it gets 1.1" in done.out
    with lake.bare_duckdb() as conn:
        conn.execute(format_attach(LakeAddress(lake.dsn, "fresh")))
        conn.execute("CREATE TABLE lake.t AS SELECT range AS i FROM range(100)")
    assert list((tmp_path / "new" / "data").rglob("*.parquet"))


@pytest.mark.whole
def test_init_refuses_paths_that_the_lake_contradicts(lake: FreshLake, tmp_path: Path) -> None:
    """A lake's paths are its own; a setting that says otherwise is a mistake."""
    for name in ("data_path", "iceberg_path"):
        done = run(tmp_path, "init", "--home", str(tmp_path / "home"), settings=settings_for(lake, **{name: "s3://lake/elsewhere/"}))
        assert done.status == 1
        assert f"{name} is 's3://lake/elsewhere/' in the settings and '{getattr(lake, name)}' in the lake" in done.err


@pytest.mark.parametrize(
    ("data_path", "expected"),
    [
        pytest.param("s3://bucket/lake/data/", "s3://bucket/lake/iceberg/", id="data"),
        pytest.param("s3://bucket/lake/", "s3://bucket/lake-iceberg/", id="other name"),
        pytest.param("/srv/lake/data/", "/srv/lake/iceberg/", id="folder"),
        pytest.param("file:///srv/files/", "file:///srv/files-iceberg/", id="file URI"),
    ],
)
def test_the_iceberg_path_lies_beside_the_data_path(data_path: str, expected: str) -> None:
    """Never below it: DuckLake removes files there that it does not know."""
    assert get_default_iceberg_path(data_path) == expected
    assert not expected.startswith(data_path)


def test_nothing_lies_beside_a_whole_bucket() -> None:
    """Then the folder must be given."""
    with pytest.raises(SettingsError, match="set iceberg_path"):
        get_default_iceberg_path("s3://bucket/")


@pytest.mark.whole
def test_check_explains_each_kind_of_damage(lake: FreshLake, tmp_path: Path) -> None:
    """Missing files and defaults that are none: each with what to do, and status 1."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t AS SELECT range AS i FROM range(100)")
    conn.execute("ALTER TABLE t ADD COLUMN later INTEGER DEFAULT 7")
    conn.close()
    rows = lake.psycopg()
    rows.execute("UPDATE ducklake_column SET initial_default = 'someday' WHERE column_name = 'later'")
    rows.execute("UPDATE ducklake_data_file SET path = 'gone.parquet'")
    done = run(tmp_path, "check", "--home", str(tmp_path / "home"), settings=settings_for(lake))
    assert done.status == 1
    assert "error t: column later has the initial default 'someday', which is no int32" in done.out
    assert f"error main.t: the file {lake.data_path}main/t/gone.parquet is missing" in done.out


@pytest.mark.whole
def test_check_warns_of_what_iceberg_clients_cannot_read(lake: FreshLake, tmp_path: Path) -> None:
    """DuckDB is fine with it, so the status is 0; the column and the remedy are named."""
    with lake.duckdb() as conn:
        conn.execute("CREATE TABLE odd AS SELECT 5::UBIGINT AS u")
        conn.execute("CREATE TABLE even AS SELECT 5 AS u")
    done = run(tmp_path, "check", "--home", str(tmp_path / "home"), settings=settings_for(lake))
    assert (done.status, done.out.splitlines()[0]) == (0, "lake: 0 errors, 1 warnings")
    assert "warning main.odd: Iceberg clients cannot read it yet. Column 'u' has the DuckLake type 'uint64'" in done.out


@pytest.mark.whole
def test_check_says_when_a_server_is_gone(lake: FreshLake, tmp_path: Path) -> None:
    """An unreachable Postgres or S3 is a finding, without secrets."""
    for change in ({"postgres_dsn": "host=127.0.0.1 port=1 user=x password=geheim"}, {"s3_endpoint": "http://127.0.0.1:1"}):
        done = run(tmp_path, "check", "--home", str(tmp_path / "home"), settings=settings_for(lake, **change))
        assert done.status == 1, done.out
        assert "error lake:" in done.out
        assert "geheim" not in done.out + done.err
        assert lake.store.secret_access_key not in done.out + done.err


@pytest.mark.whole
def test_check_refuses_another_version(lake: FreshLake, tmp_path: Path) -> None:
    """Nothing else of such a lake is looked at."""
    lake.psycopg().execute("UPDATE ducklake_metadata SET value = '0.3' WHERE key = 'version'")
    done = run(tmp_path, "check", "--home", str(tmp_path / "home"), settings=settings_for(lake))
    assert (done.status, "its DuckLake version is '0.3'" in done.out) == (1, True)
    served = run(tmp_path, "serve", "--home", str(tmp_path / "home"), "--port", "9", settings=settings_for(lake))
    assert served.status == 1
    assert "0.3" in served.err


@pytest.mark.whole
def test_connect_describes_a_lake_of_yours(lake: FreshLake, tmp_path: Path) -> None:
    """Paths come from the lake itself; every form names them."""
    arguments = ("connect", "--home", str(tmp_path / "home"))
    facts = json.loads(run(tmp_path, *arguments, "--format", "json", settings=settings_for(lake)).out)
    assert (facts["ducklake.data_path"], facts["iceberg_path"]) == (lake.data_path, lake.iceberg_path)
    assert facts["catalog_uri"] == "http://127.0.0.1:8181"
    with lake.bare_duckdb() as conn:
        conn.execute(facts["ducklake.attach"])
        assert conn.sql("SELECT count(*) FROM glob('" + facts["ducklake.data_path"] + "**')").fetchone() == (0,)
    exports = run(tmp_path, *arguments, "--format", "env", settings=settings_for(lake)).out
    assert f"export LAKE_S3_ENDPOINT={lake.store.endpoint}\n" in exports
    assert "LAKE_CREDENTIAL" not in exports


@pytest.mark.whole
@pytest.mark.parametrize("client", whole_after(1, ["duckdb", "ducklake"]))
def test_sql_snippets_run_as_they_are(lake: FreshLake, tmp_path: Path, client: str) -> None:
    """What `connect` prints for DuckDB is valid SQL up to the catalog's own address."""
    text = run(tmp_path, "connect", "--home", str(tmp_path / "home"), "--client", client, "--show-secrets", settings=settings_for(lake)).out
    conn = lake.bare_duckdb()
    for statement in text.replace("\n", " ").split(";"):
        # Extensions are loaded already, from their wheels.
        if statement.strip() and not statement.strip().startswith(("INSTALL", "LOAD")):
            if client == "duckdb" and "ATTACH" in statement:
                with pytest.raises(duckdb.Error, match="127.0.0.1:8181|onnect"):
                    conn.execute(statement)
            else:
                conn.execute(statement)


@pytest.mark.parametrize(
    ("client", "expected"),
    long_after(
        1,
        [
            pytest.param("pyiceberg", "'uri': 'http://127.0.0.1:8181'", id="pyiceberg"),
            pytest.param("spark", "spark.sql.catalog.lake.uri=http://127.0.0.1:8181", id="spark"),
            pytest.param("trino", "iceberg.rest-catalog.uri=http://127.0.0.1:8181", id="trino"),
        ],
    ),
)
def test_every_client_has_its_snippet(lake: FreshLake, tmp_path: Path, client: str, expected: str) -> None:
    """With the catalog's address and the store's keys."""
    text = run(tmp_path, "connect", "--home", str(tmp_path / "home"), "--client", client, "--show-secrets", settings=settings_for(lake)).out
    assert expected in text
    assert lake.store.secret_access_key in text


@pytest.mark.whole
def test_a_role_that_may_not_install_is_told_so(foreign: FreshLake, stack: SharedStack, tmp_path: Path) -> None:
    """The message names the remedy; once the owner ran `init`, a role that only reads and writes is enough."""
    role = f"clerk_{foreign.name}"
    theirs = settings_for(foreign, postgres_dsn=foreign.dsn.split(" user=")[0] + f" user={role} password=geheim")
    home = ("--home", str(tmp_path / "home"))
    with psycopg.connect(stack.admin_dsn, autocommit=True) as admin, foreign.psycopg() as owner:
        admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'geheim'".encode())
        try:
            owner.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}".encode())
            refused = run(tmp_path, "init", *home, settings=theirs)
            assert refused.status == 1
            assert "Run `duckicelake init` once as the lake's owner" in refused.err
            assert run(tmp_path, "init", *home, settings=settings_for(foreign)).status == 0
            owner.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}".encode())
            allowed = run(tmp_path, "init", *home, settings=theirs)
            assert allowed.status == 0, allowed.err
        finally:
            owner.execute(f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {role}".encode())
            admin.execute(f"DROP ROLE {role}".encode())


def test_help_and_version_are_those_of_other_commands() -> None:
    """Flags have no type in the help, `--version` is an option, and shells complete the commands."""
    shown = [CliRunner().invoke(build_cli(), arguments).output for arguments in (["check", "--help"], ["--help"], ["--version"])]
    assert "--help               Show" in shown[0]
    assert "bool" not in "".join(shown)
    assert "--install-completion" in shown[1]
    assert shown[2].startswith("duckicelake ")


@pytest.mark.whole
def test_version_names_what_runs(tmp_path: Path) -> None:
    """Ours and the pinned servers'."""
    done = run(tmp_path, "version")
    assert done.status == 0, done.err
    versions = json.loads(done.out)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert versions["duckicelake"] == project["version"]
    assert versions["duckdb"] == "1.5.5"


def test_the_text_hides_secrets_unless_told_otherwise(lake: FreshLake, tmp_path: Path) -> None:
    """Neither the password of Postgres nor the secret key of the store stands on a screen by accident."""
    text = run(tmp_path, "connect", "--home", str(tmp_path / "home"), settings=settings_for(lake)).out
    password = lake.dsn.partition("password=")[2].split(" ")[0]
    assert len(password) > 8
    assert password not in text
    assert lake.store.secret_access_key not in text
    assert lake.store.access_key_id in text
