"""Settings: where they come from, in which order, and what is refused with which words."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from duckicelake.app import build_app
from duckicelake.config import LakeSettings, Settings, SettingsError, get_default_home, is_loopback, list_setting_names, read_settings
from duckicelake.errors import CatalogError
from duckicelake.store_settings import read_store_settings


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder and no setting in the environment."""
    for name in [name for name in os.environ if name.upper().startswith("DUCKICELAKE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    yield tmp_path


ISSUER = {"name": "corp", "issuer": "https://login.example.org", "audience": "lake"}


def refusal(**arguments: object) -> str:
    """Return the message with which the settings are refused."""
    with pytest.raises(SettingsError) as refused:
        read_settings(arguments)
    return refused.value.message


def the_lake(**arguments: object) -> LakeSettings:
    """Return the only lake of the settings."""
    (lake,) = read_settings(arguments).lakes()
    return lake


def test_nothing_configured_means_a_stack_of_our_own() -> None:
    """The defaults serve on loopback, with an embedded Postgres and S3, and name no lake yet."""
    settings = read_settings({})
    assert (settings.host, settings.port, settings.workers, settings.warehouse) == ("127.0.0.1", 8181, 1, "lake")
    assert settings.embedded_postgres
    assert settings.embedded_store
    assert settings.lakes() == []


def test_the_command_line_wins_over_environment_over_dotenv_over_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each source adds what the stronger ones leave open."""
    (folder / "duckicelake.toml").write_text('port = 1\nworkers = 2\ncache_max = 3\nwarehouse = "from_file"\n')
    (folder / ".env").write_text("DUCKICELAKE_PORT=10\nDUCKICELAKE_WORKERS=20\nDUCKICELAKE_CACHE_MAX=30\nOTHER_PROGRAM=1\n")
    monkeypatch.setenv("DUCKICELAKE_PORT", "100")
    monkeypatch.setenv("DUCKICELAKE_WORKERS", "40")
    settings = read_settings({"port": 1000, "host": None})
    assert (settings.port, settings.workers, settings.cache_max, settings.warehouse) == (1000, 40, 30, "from_file")


@pytest.mark.parametrize("source", ["argument", "environment", "dotenv"])
def test_the_file_can_be_named(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """`--config` or DUCKICELAKE_CONFIG; a named file that is missing stops the start."""
    (folder / "other.toml").write_text("port = 77\n")
    if source == "environment":
        monkeypatch.setenv("DUCKICELAKE_CONFIG", "other.toml")
    if source == "dotenv":
        (folder / ".env").write_text("DUCKICELAKE_CONFIG=other.toml\n")
    assert read_settings({"config": Path("other.toml")} if source == "argument" else {}).port == 77
    assert refusal(config="missing.toml") == "The settings file missing.toml does not exist."


def test_an_unknown_setting_is_named_wherever_it_stands(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt setting never passes in silence."""
    (folder / "duckicelake.toml").write_text("prot = 1\n")
    assert refusal() == "prot: there is no such setting"
    (folder / "duckicelake.toml").write_text("[lakes.a]\npostgres_dsn = 'x'\nschema = 'y'\n")
    assert refusal() == "lakes.a.schema: there is no such setting"
    (folder / "duckicelake.toml").unlink()
    (folder / ".env").write_text("DUCKICELAKE_PROT=1\n")
    assert refusal() == "prot: there is no such setting"
    (folder / ".env").unlink()
    monkeypatch.setenv("DUCKICELAKE_PROT", "1")
    assert refusal().startswith(
        "Unknown settings in the environment: DUCKICELAKE_PROT (did you mean DUCKICELAKE_PORT?). Known: DUCKICELAKE_ALLOWED_LOCATIONS, "
    )
    monkeypatch.setenv("DUCKICELAKE_ZZZZZZ", "1")
    assert "DUCKICELAKE_PORT?), DUCKICELAKE_ZZZZZZ. Known" in refusal()


SERVICE_LINKS = {
    "SERVICE_HOST": "10.96.12.7",
    "SERVICE_PORT": "8181",
    "SERVICE_PORT_HTTP": "8181",
    "PORT": "tcp://10.96.12.7:8181",
    "PORT_8181_TCP": "tcp://10.96.12.7:8181",
    "PORT_8181_TCP_PROTO": "tcp",
    "PORT_8181_TCP_PORT": "8181",
    "PORT_8181_TCP_ADDR": "10.96.12.7",
}
"""What Kubernetes sets in every container of a namespace that has a Service `duckicelake`."""


@pytest.mark.parametrize("service", ["", "POSTGRES_", "S3_", "UI_"])
def test_service_links_of_kubernetes_are_no_settings(folder: Path, monkeypatch: pytest.MonkeyPatch, service: str) -> None:
    """Neither of a Service `duckicelake` nor of `duckicelake-postgres`; the port stays what other sources say."""
    for name, text in SERVICE_LINKS.items():
        monkeypatch.setenv(f"DUCKICELAKE_{service}{name}", text)
    settings = read_settings({})
    assert (settings.port, settings.postgres_port, settings.s3_port) == (8181, None, None)
    (folder / "duckicelake.toml").write_text("port = 77\n")
    assert read_settings({}).port == 77
    monkeypatch.setenv("DUCKICELAKE_SERVICE_HOTS", "1")
    assert "DUCKICELAKE_SERVICE_HOTS" in refusal()


def test_only_ports_can_be_service_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that is a number counts, and an address elsewhere is refused as before."""
    monkeypatch.setenv("DUCKICELAKE_PORT", "9000")
    assert read_settings({}).port == 9000
    monkeypatch.setenv("DUCKICELAKE_PORT", "http://10.96.12.7:8181")
    assert refusal().startswith("port: Input should be a valid integer")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        pytest.param("PORT", "http", "port: Input should be a valid integer", id="no number"),
        pytest.param("PORT", "70000", "port: Input should be less than or equal to 65535", id="too big"),
        pytest.param("STORE", "floppy", "store: Input should be 'auto', 'minio', 'seaweedfs' or 'none'", id="no such store"),
        pytest.param("LOG_FORMAT", "xml", "log_format: Input should be 'plain' or 'json'", id="no such format"),
        pytest.param("WAREHOUSE", "a/b", "warehouse: String should match pattern", id="not a path part"),
        pytest.param("LAKES", "{", "DUCKICELAKE_LAKES is a JSON object", id="no JSON"),
    ],
)
def test_a_malformed_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, text: str, message: str) -> None:
    """The message says which and what it may be."""
    monkeypatch.setenv(f"DUCKICELAKE_{name}", text)
    assert message in refusal()


def test_a_file_that_is_no_toml_is_refused(folder: Path) -> None:
    """With the line."""
    (folder / "duckicelake.toml").write_text("port == 1\n")
    assert "The settings file is not TOML" in refusal()
    assert "line 1" in refusal()


TWO_LAKES: Mapping[str, object] = {"postgres_dsn": "x", "lakes": {"a": {}, "b": {"metadata_schema": "bee"}}}


def with_paths(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, object]:
    """Return two lakes with these paths."""
    return {"postgres_dsn": "x", "lakes": {"a": first, "b": {"metadata_schema": "bee", **second}}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param({"s3_access_key_id": "a", "postgres_dsn": "x"}, "belong together", id="half a key pair"),
        pytest.param({"s3_endpoint": "127.0.0.1:9000", "postgres_dsn": "x"}, "is not a URL", id="endpoint without scheme"),
        pytest.param({"postgres_dsn": "x", "postgres_port": 5432}, "set one of them", id="own and embedded Postgres"),
        pytest.param({"s3_endpoint": "http://x", "store": "minio"}, "set one of them", id="own and embedded S3"),
        pytest.param(
            {"postgres_dsn": "x", "data_path": "s3://b/data", "iceberg_path": "s3://b/data/iceberg/"}, "below data_path", id="path below"
        ),
        pytest.param({"lakes": {"a": {}}}, "lakes.a has no postgres_dsn", id="lake without Postgres"),
        pytest.param(
            {**TWO_LAKES, "data_path": "s3://b/data/"}, "data_path at the top level would be every lake's", id="one data_path for all"
        ),
        pytest.param({**TWO_LAKES, "iceberg_path": "s3://b/x/"}, "iceberg_path at the top level", id="one iceberg_path for all"),
        pytest.param(with_paths({"data_path": "s3://b/d"}, {"data_path": "s3://b/d/"}), "lakes.a and lakes.b", id="a data_path twice"),
        pytest.param(with_paths({"iceberg_path": "s3://b/d/i/"}, {"data_path": "s3://b/d/"}), "in one folder, s3://b/d/", id="path below"),
        pytest.param({"oidc_issuers": [ISSUER]}, "require_auth=true", id="issuer for nobody"),
        pytest.param({"oidc_issuers": [ISSUER, {**ISSUER, "name": "b"}], "require_auth": True}, "one issuer", id="issuer twice"),
        pytest.param({"oidc_issuers": [ISSUER, {**ISSUER, "issuer": "https://b"}], "require_auth": True}, "one name", id="two of a name"),
        pytest.param({"oidc_issuers": [{**ISSUER, "audience": ""}], "require_auth": True}, "oidc_issuers.0.audience", id="for anybody"),
        pytest.param({"requests_per_s": 5}, "require_auth=true", id="pace for nobody"),
    ],
)
def test_contradictions_stop_the_start(arguments: dict[str, object], message: str) -> None:
    """Two settings that cannot both be meant are refused."""
    assert message in refusal(**arguments)


def test_issuers_are_tables_of_the_file_or_a_list_in_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, each with what it has of its own."""
    tables = 'require_auth = true\n[[oidc_issuers]]\nname = "corp"\nissuer = "https://login.example.org"\naudience = "lake"\n'
    (folder / "duckicelake.toml").write_text(tables + '[oidc_issuers.roles]\n"Data Admins" = "admins"\n')
    [found] = read_settings({}).oidc_issuers
    assert (found.name, found.roles, found.algorithms, found.roles_claim) == ("corp", {"Data Admins": "admins"}, ("RS256", "ES256"), None)
    monkeypatch.setenv("DUCKICELAKE_OIDC_ISSUERS", json.dumps([{**ISSUER, "name": "a"}, {**ISSUER, "name": "b", "issuer": "https://b"}]))
    assert [issuer.name for issuer in read_settings({}).oidc_issuers] == ["a", "b"]
    monkeypatch.setenv("DUCKICELAKE_OIDC_ISSUERS", json.dumps([{**ISSUER, "secret": "x"}]))
    assert "oidc_issuers.0.secret: there is no such setting" in refusal()


def test_an_issuer_that_cannot_be_believed_stops_the_start() -> None:
    """Before anything is open, and with a word that names it."""
    told = {**ISSUER, "issuer": "http://login.example.org"}
    with pytest.raises(CatalogError, match="'corp' has a URL that is not of https"):
        build_app(read_settings({"require_auth": True, "oidc_issuers": [told]}))
    missing = {**ISSUER, "ca_file": "none.pem"}
    with pytest.raises(CatalogError, match="none.pem cannot be read"):
        build_app(read_settings({"require_auth": True, "oidc_issuers": [missing]}))


def test_no_message_shows_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a refusal nor the settings' own text holds a password."""
    monkeypatch.setenv("DUCKICELAKE_POSTGRES_DSN", "password=geheim")
    monkeypatch.setenv("DUCKICELAKE_S3_SECRET_ACCESS_KEY", "geheim")
    assert "geheim" not in refusal()
    monkeypatch.setenv("DUCKICELAKE_S3_ACCESS_KEY_ID", "key")
    settings = read_settings({})
    assert "geheim" not in f"{settings!r} {settings} {settings.lakes()!r}"
    assert settings.lakes()[0].postgres_dsn.get_secret_value() == "password=geheim"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "lake.example"])
def test_an_open_door_without_keys_is_refused(host: str) -> None:
    """Reachable from other machines and no authentication: only when somebody accepts it."""
    assert "reachable from other machines" in refusal(host=host)
    assert read_settings({"host": host, "insecure": True}).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_keys(host: str) -> None:
    """Only this machine reaches it."""
    assert is_loopback(host)
    assert read_settings({"host": host}).host == host


def test_one_lake_comes_from_the_top_level() -> None:
    """A DSN makes the lake named by `warehouse`, and switches the embedded servers off."""
    settings = read_settings({"postgres_dsn": "host=x", "warehouse": "sales", "s3_endpoint": "http://s3:9000"})
    assert not settings.embedded_postgres
    assert not settings.embedded_store
    (lake,) = settings.lakes()
    assert (lake.name, lake.metadata_schema, lake.s3_endpoint, lake.data_path) == ("sales", "public", "http://s3:9000", None)


def test_several_lakes_take_what_they_leave_out_from_the_top_level() -> None:
    """Keys are taken as a pair or not at all; paths belong to one lake and are never shared."""
    settings = read_settings(
        {
            "postgres_dsn": "host=shared",
            "s3_endpoint": "http://shared:9000",
            "s3_access_key_id": "shared",
            "s3_secret_access_key": "shared secret",
            "lakes": {
                "b": {"metadata_schema": "bee"},
                "a": {"postgres_dsn": "host=own", "s3_access_key_id": "own", "s3_secret_access_key": "own secret"},
            },
        }
    )
    first, second = settings.lakes()
    assert (first.name, second.name) == ("a", "b")
    assert first.postgres_dsn.get_secret_value() == "host=own"
    assert second.postgres_dsn.get_secret_value() == "host=shared"
    assert (first.metadata_schema, second.metadata_schema) == ("public", "bee")
    assert (first.s3_access_key_id, second.s3_access_key_id) == ("own", "shared")
    assert second.s3_secret_access_key is not None
    assert second.s3_secret_access_key.get_secret_value() == "shared secret"
    assert {first.s3_endpoint, second.s3_endpoint} == {"http://shared:9000"}


def test_each_lake_says_whether_payloads_are_hashed_where_the_connection_guards_them() -> None:
    """They are not, unless it is asked for; what the top level asks for a lake may not want."""
    assert [read_store_settings(lake).signs_payloads for lake in read_settings({"postgres_dsn": "host=x"}).lakes()] == [False]
    lakes = {"a": {"s3_signed_payloads": False}, "b": {}}
    settings = read_settings({"postgres_dsn": "host=x", "s3_signed_payloads": True, "lakes": lakes})
    assert [read_store_settings(lake).signs_payloads for lake in settings.lakes()] == [False, True]


@pytest.mark.parametrize(
    ("arguments", "postgres", "store"),
    [
        pytest.param({}, True, True, id="nothing"),
        pytest.param({"data_path": "/srv/lake/data"}, True, False, id="files"),
        pytest.param({"s3_endpoint": "http://x"}, True, False, id="own S3"),
        pytest.param({"postgres_dsn": "x"}, False, False, id="own Postgres"),
        pytest.param({"postgres_dsn": "x", "store": "seaweedfs"}, False, True, id="own Postgres, embedded S3"),
        pytest.param({"store": "none"}, True, False, id="no store"),
        pytest.param({"lakes": {"a": {"postgres_dsn": "x"}}}, False, False, id="lakes"),
    ],
)
def test_only_what_is_missing_is_embedded(arguments: dict[str, object], postgres: bool, store: bool) -> None:
    """A server of yours is used; the others are ours."""
    settings = read_settings(arguments)
    assert (settings.embedded_postgres, settings.embedded_store) == (postgres, store)


def test_settings_cannot_change() -> None:
    """They are read once."""
    settings = read_settings({})
    with pytest.raises(ValueError, match="frozen"):
        settings.port = 5  # pyright: ignore[reportAttributeAccessIssue]


def test_the_home_follows_the_users_data_folder() -> None:
    """XDG_DATA_HOME when it is set, else the usual place."""
    assert get_default_home({"XDG_DATA_HOME": "/data"}) == Path("/data/duckicelake")
    assert get_default_home({}) == Path.home() / ".local/share/duckicelake"


def test_every_setting_has_a_name_for_the_environment() -> None:
    """`lakes` is called so everywhere."""
    assert "lakes" in list_setting_names()
    assert len(list_setting_names()) == len(Settings.model_fields)


def test_a_credential_has_one_source() -> None:
    """Two could name two accounts; the message shows neither."""
    with pytest.raises(SettingsError, match="set one of them") as refused:
        read_settings({"credential": "me:hunter2", "credential_file": Path("me")})
    assert "hunter2" not in refused.value.message
