"""DuckDB with its pinned extensions, and the lake it makes."""

import shutil
from importlib.resources import files
from pathlib import Path

import pytest

from duckicelake.embedded.ducklake import (
    EmbeddedError,
    LakeAddress,
    S3Keys,
    attach_lake,
    connect_duckdb,
    create_lake,
    format_attach,
    format_secret,
    quote,
)
from tests.support.lakes import FreshLake


def test_extensions_come_from_the_wheels(tmp_path: Path) -> None:
    """Nothing is copied, and nothing may be fetched."""
    with connect_duckdb(tmp_path) as conn:
        loaded = conn.execute("SELECT extension_name FROM duckdb_extensions() WHERE loaded").fetchall()
        assert {("ducklake",), ("postgres_scanner",), ("httpfs",)} <= set(loaded)
        assert conn.execute("SELECT current_setting('autoinstall_known_extensions')").fetchone() == (False,)
        assert conn.execute("SELECT current_setting('allow_unsigned_extensions')").fetchone() == (False,)
    assert list(tmp_path.iterdir()) == []


def test_an_extension_that_is_not_installed_is_named(tmp_path: Path) -> None:
    """A missing wheel ends in one message."""
    with pytest.raises(EmbeddedError, match=r"cannot load its extensions: .*nonesuch"):
        connect_duckdb(tmp_path, ("nonesuch",))


def test_an_extension_whose_signature_is_not_duckdbs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit of it was changed."""
    shutil.copytree(str(files("duckdb_extension_avro")), tmp_path / "duckdb_extension_changed")
    [copy] = (tmp_path / "duckdb_extension_changed").rglob("avro.duckdb_extension")
    content = bytearray(copy.read_bytes())
    content[-1] ^= 1
    copy.with_name("changed.duckdb_extension").write_bytes(content)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EmbeddedError, match="signature"):
        connect_duckdb(tmp_path, ("changed",))


def test_a_lake_is_made_once_and_then_only_attached(lake: FreshLake, tmp_path: Path) -> None:
    """Making it again changes nothing."""
    address = LakeAddress(lake.dsn, "second", str(tmp_path / "data") + "/")
    create_lake(lake.extension_folder, address, None)
    with lake.psycopg() as conn:
        before = conn.execute("SELECT * FROM second.ducklake_metadata ORDER BY key").fetchall()
        create_lake(lake.extension_folder, address, None)
        assert conn.execute("SELECT * FROM second.ducklake_metadata ORDER BY key").fetchall() == before
        assert ("version", "1.0") in {row[:2] for row in before}


def test_a_lake_with_another_data_path_is_refused_without_its_password(lake: FreshLake) -> None:
    """The message names the schema and hides the connection string."""
    with pytest.raises(EmbeddedError, match="cannot attach the lake in schema 'lake'") as refused:
        create_lake(lake.extension_folder, LakeAddress(lake.dsn, lake.metadata_schema, "s3://lake/elsewhere/"), None)
    assert "password" not in refused.value.message


def test_an_unreachable_postgres_is_reported_without_its_password(lake: FreshLake) -> None:
    """DuckDB's message holds the whole connection string; ours does not."""
    dsn = "host=127.0.0.1 port=1 user=duckicelake password=geheim dbname=lake"
    with connect_duckdb(lake.extension_folder) as conn, pytest.raises(EmbeddedError) as refused:
        attach_lake(conn, LakeAddress(dsn, "lake"), None)
    assert "geheim" not in refused.value.message
    assert refused.value.__cause__ is None


def test_quotes_in_values_stay_inside_them() -> None:
    """A value cannot end its literal."""
    assert quote("it's") == "'it''s'"
    attach = format_attach(LakeAddress("host=h password=a'b", "sche'ma", "s3://b/it's/", read_only=True))
    assert attach == (
        "ATTACH 'ducklake:postgres:host=h password=a''b' AS lake (METADATA_SCHEMA 'sche''ma', DATA_PATH 's3://b/it''s/', READ_ONLY)"
    )


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        pytest.param("http://127.0.0.1:9000", "ENDPOINT '127.0.0.1:9000', USE_SSL false, URL_STYLE 'path'", id="plain"),
        pytest.param("https://minio.example", "ENDPOINT 'minio.example', USE_SSL true, URL_STYLE 'path'", id="tls"),
        pytest.param(None, "REGION 'eu-west-1')", id="aws"),
    ],
)
def test_a_secret_names_the_endpoint_as_duckdb_wants_it(endpoint: str | None, expected: str) -> None:
    """Host without scheme, TLS as a switch; AWS needs neither."""
    statement = format_secret(S3Keys(endpoint, "eu-west-1", "key", "secret"))
    assert statement.startswith("CREATE OR REPLACE SECRET lake_s3 (TYPE s3, KEY_ID 'key', SECRET 'secret', REGION 'eu-west-1'")
    assert expected in statement
