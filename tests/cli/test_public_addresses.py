"""Where clients reach the server and its store, when it is not where the server listens."""

from pathlib import Path

import pytest

from duckicelake.commands.facts import get_catalog_uri, get_facts, remember_server
from duckicelake.config import SettingsError, read_settings
from duckicelake.embedded.home import open_home
from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake

PUBLIC_URL, PUBLIC_S3 = "https://lake.example.com/iceberg", "https://s3.example.com"


def test_connect_names_the_public_addresses(lake: FreshLake, tmp_path: Path) -> None:
    """Whatever the server listens on, and also while one runs."""
    home = open_home(tmp_path / "home")
    settings = make_settings(lake, public_url=f"{PUBLIC_URL}/", s3_public_endpoint=PUBLIC_S3, host="0.0.0.0", insecure=True)
    for _ in range(2):
        facts = get_facts(settings, home, None)
        assert (facts.catalog_uri, facts.s3_endpoint) == (PUBLIC_URL, PUBLIC_S3)
        assert facts.token_uri == f"{PUBLIC_URL}/v1/oauth/tokens"
        remember_server(home, "http://127.0.0.1:8181")


def test_without_a_public_address_connect_names_where_the_server_listens(lake: FreshLake, tmp_path: Path) -> None:
    """As ever."""
    home = open_home(tmp_path / "home")
    assert get_catalog_uri(make_settings(lake, port=9000), home) == "http://127.0.0.1:9000"
    remember_server(home, "http://127.0.0.1:8181")
    assert get_catalog_uri(make_settings(lake, port=9000), home) == "http://127.0.0.1:8181"


def test_the_catalog_tells_clients_the_public_endpoint_of_the_store(lake: FreshLake) -> None:
    """In /v1/config; the server itself reads the lake by the endpoint that it reaches."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS i FROM range(30)")
    with serve(make_settings(lake, s3_public_endpoint=PUBLIC_S3)) as server:
        assert server.get("/v1/config").json["defaults"]["s3.endpoint"] == PUBLIC_S3
        assert server.get("namespaces/main/tables/t").status == 200
    with serve(make_settings(lake)) as server:
        assert server.get("/v1/config").json["defaults"]["s3.endpoint"] == lake.store.endpoint


@pytest.mark.parametrize("url", ["lake.example.com", "ftp://lake", "https://", "https://a b", "https://u:p@lake", "https://lake?x=1"])
def test_a_public_url_that_is_none_stops_the_start(url: str) -> None:
    """The message names the setting."""
    with pytest.raises(SettingsError, match="public_url"):
        read_settings({"public_url": url})


def test_a_public_endpoint_that_is_none_stops_the_start(lake: FreshLake) -> None:
    """As s3_endpoint does."""
    with pytest.raises(ValueError, match=r"s3_public_endpoint 's3\.example\.com' is not a URL"):
        make_settings(lake, s3_public_endpoint="s3.example.com").lakes()
